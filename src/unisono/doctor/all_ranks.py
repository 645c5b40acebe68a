"""The examination of a job by all its ranks: they connect, exchange what they found, and try their links.

Each step is collective. A failure is a finding, not an error: the ranks continue with what they know.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from unisono.cluster.rendezvous import ports
from unisono.cluster.topology import Topology
from unisono.doctor import installed_mpi, peers
from unisono.doctor.aside import Aside
from unisono.doctor.facts import Facts, Measurement, Mpi
from unisono.doctor.finding import FAIL, Finding, finding_from_error
from unisono.doctor.gather import gather
from unisono.errors import CollectiveTimeout, CommError, PeerLost, UnisonoError, UsageError

if TYPE_CHECKING:
    from unisono.comm.control_plane.tcp_control import TcpControl

MEET_LIMIT_S = 20.0
GATHER_LIMIT_S = 180.0
"""Importing torch from a busy file system can take minutes."""
ENGINES_LIMIT_S = 90.0
"""For all engines together; each has its own, shorter limits, which a library that hangs does not keep."""
END_LIMIT_S = ENGINES_LIMIT_S + 10.0


@dataclass
class JobExamination:
    """One rank's part in the examination of a job. `run` stores its results in the fields after `say`; they are complete on rank
    0."""

    at: Topology
    env: Mapping[str, str]
    bandwidth: bool
    say: Callable[[str], None]
    ranks: list[Facts] = field(default_factory=list)
    engine: str = ""
    origin: str = ""
    measurements: list[Measurement] = field(default_factory=list)
    problems: list[Finding] = field(default_factory=list)
    must_report_itself: bool = False
    """Whether this rank must report its problems itself, because rank 0 is gone or cannot see them."""
    aside: Aside = field(default_factory=Aside)

    def run(self) -> None:
        """Examines the job. Collective over its ranks, blocking for seconds; a rank that never comes costs `MEET_LIMIT_S`."""
        self.say(f"waiting for {self.at.world_size} ranks")
        try:
            control = self._meet()
        except (CommError, UsageError) as error:
            self._add_problem(
                error, f"check that the launcher started all {self.at.world_size} (squeue, ps) and that they reach rank 0"
            )
            if self.at.global_rank == 0:
                self.say("gathering facts")
                self.ranks = [gather(self.at, self.env, "127.0.0.1")]
            return
        try:
            self._examine(control)
        except (PeerLost, CollectiveTimeout) as error:
            control.give_up(str(error), [rank for rank in error.ranks if rank != control.rank])
            self._add_problem(error, "see the output of this rank, and check its node (memory, file system)")
        except BaseException as error:
            control.give_up(f"{type(error).__name__}: {error}")
            raise
        finally:
            control.close()

    def _add_problem(self, error: UnisonoError, remedy: str) -> None:
        """Adds a failure of the meeting as a finding, and notes whether this rank must report it itself, as rank 0 cannot."""
        self.must_report_itself = not isinstance(error, (PeerLost, CollectiveTimeout)) or 0 in error.ranks
        self.problems.append(finding_from_error(FAIL, "meeting", str(error), remedy))

    def _meet(self) -> TcpControl:
        """Returns the control plane that connects all ranks; asks MPI for the address of rank 0 where only MPI knows it."""
        from unisono.comm.control_plane.tcp_control import TcpControl

        at = self.at if self.at.address is not None else self._ask_mpi()
        assert at.address is not None
        return TcpControl.connect(
            rank=at.global_rank,
            size=at.world_size,
            address=at.address,
            ports=ports(at.port, at.token),
            token=at.secret,
            timeout_s=MEET_LIMIT_S,
            job=at.job,
            name=at.token,
            no_secret=at.no_secret,
        )

    def _ask_mpi(self) -> Topology:
        """The topology with the address of rank 0, where only MPI knows it."""
        mpi = installed_mpi.find_installed(self.env, self.at.launcher)
        if not installed_mpi.is_usable(mpi):
            why = mpi.error or mpi.library or "mpi4py is not installed"
            raise UsageError(f"mpirun of {mpi.launcher} does not say where rank 0 is, and MPI cannot be started to find out: {why}")
        from unisono.comm.engines.mpi import complete_topology

        found = self.aside.run(lambda: complete_topology(self.at), ENGINES_LIMIT_S)
        if found is None:
            raise CommError(f"MPI did not start on rank {self.at.global_rank} within {ENGINES_LIMIT_S:g} s ({self.aside.where()})")
        return found

    def _examine(self, control: TcpControl) -> None:
        """Collective, blocking: gathers the facts of all ranks into `ranks`, then tries engines and MPI; keeps the results."""
        everybody = range(control.size)
        self.say("gathering facts")
        own = gather(self.at, self.env, control.local_address)
        self.ranks = [own]
        proof = secrets.token_bytes(16)
        with peers.offer_memory(proof) as fd:
            message = {"facts": own.plain(), "fd": fd, "proof": proof, "token": secrets.token_hex(16)}
            answers = control.exchange("doctor facts", everybody, message, GATHER_LIMIT_S)
            ranks = [Facts.from_plain(answer["facts"]) for answer in answers]
            offers, proofs = ([answer[name] for answer in answers] for name in ("fd", "proof"))
            seen = (peers.find_unreachable(own, ranks, offers, proofs), peers.find_unresolved(own, ranks))
            views = control.exchange("doctor peers", everybody, seen, GATHER_LIMIT_S)
        self.ranks = [replace(facts, unreachable=a, unresolved=b) for facts, (a, b) in zip(ranks, views, strict=True)]
        self._try_engines(answers[0]["token"])
        self._try_mpi(control)

    def _try_engines(self, token: str) -> None:
        """Measures engines between ranks, unless that is switched off, or torch or MPI is unusable; raises `CollectiveTimeout`
        where one hangs."""
        fit = all(installed_mpi.is_usable(facts.mpi) for facts in self.ranks) or not installed_mpi.needs_mpi(self.ranks)
        if not self.bandwidth or not fit or any(facts.torch.error for facts in self.ranks):
            return
        from unisono.doctor.engines import try_engines

        self.say("measuring between ranks")
        meeting = replace(self.at, address=self.ranks[0].address, token=token, secret=token, no_secret="")
        trial = self.aside.run(lambda: try_engines(meeting, self.ranks), ENGINES_LIMIT_S)
        if trial is None:
            fact = f"an engine did not finish on rank {self.at.global_rank} within {ENGINES_LIMIT_S:g} s ({self.aside.where()})"
            raise CollectiveTimeout([self.at.global_rank], f"{fact}; try another engine: export UNISONO_ENGINE=gloo")
        self.engine, self.origin, self.measurements = trial.engine, trial.origin, trial.measurements

    def _try_mpi(self, control: TcpControl) -> None:
        """Asks MPI for its rank and size, unless this process may have started MPI itself: then its engine has compared them."""
        mpi = self.ranks[control.rank].mpi
        started = self.at.address is None or (self.bandwidth and installed_mpi.needs_mpi(self.ranks))
        if self.engine == "mpi":
            mpi = replace(mpi, rank=control.rank, size=control.size)
        elif not started and mpi.launcher and all(installed_mpi.is_usable(facts.mpi) for facts in self.ranks):
            self.say("trying MPI")
            mpi = installed_mpi.try_start(mpi)
        answers = control.exchange("doctor end", range(control.size), asdict(mpi), END_LIMIT_S)
        self.ranks = [replace(facts, mpi=Mpi(**answer)) for facts, answer in zip(self.ranks, answers, strict=True)]
