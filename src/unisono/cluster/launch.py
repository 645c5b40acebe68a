"""`unisono run`: starts the ranks of one node, passes on their lines and signals, and ends them all when one fails."""

from __future__ import annotations

import math
import os
import secrets
import selectors
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import time

from unisono.cluster import affinity, gpus
from unisono.cluster.horovod_start import HorovodStart
from unisono.cluster.instruction_set import CUBLAS_WORKSPACE, CUBLAS_WORKSPACES, settings_of
from unisono.cluster.last_lines import code_of, pass_on_the_rest
from unisono.cluster.mortality import Mortality, before_exec
from unisono.cluster.orders import HEARD, OrdersFromStdin, secret_from_stdin
from unisono.cluster.output import Console, LogFolder
from unisono.cluster.processor import this_processor
from unisono.cluster.program import command
from unisono.cluster.rank_env import Placement, rank_environment, refuse_inside_a_rank
from unisono.cluster.rank_process import RankProcess, start_process
from unisono.cluster.rendezvous import derived_port, host_port, job_token
from unisono.cluster.signals import SignalInbox
from unisono.cluster.terminal import columns_of
from unisono.cluster.topology import ALLREDUCES, ENGINES
from unisono.cluster.wishes import check_wishes, refuse_contradictions, wishes_of
from unisono.cluster.world import Outcome, World
from unisono.errors import UsageError

BINDINGS = ("cpus", "none")
POLICIES = ("end", "continue", "restart", "elastic")
VOICES = ("all", "first")
NO_RESTART = (0, 2, 75)
"""Codes after which ranks are not started again: done, a mistake that stays one, stopped on purpose with everything saved."""


@dataclass(frozen=True)
class LaunchConfig:
    """What to start. Local; refuses values that cannot work, naming the option of `unisono run`."""

    program: tuple[str, ...]
    """As typed: a script, an executable or `-m module`, then its arguments."""
    num_local: int
    """Processes on this node; the same number on every node."""
    engine: str | None = None
    allreduce: str | None = None
    time_limit_s: float | None = None
    """Wishes for the communicator; None leaves them to the environment."""
    num_nodes: int = 1
    node_rank: int = 0
    rendezvous: str | None = None
    """host:port on the first node, alike on all nodes; needed when there are several."""
    job: str | None = None
    """Readable name; on several nodes it also keeps two jobs apart that meet at the same rendezvous."""
    log_dir: Path | None = None
    on_failure: str = "end"
    restarts: int = 0
    """How often all ranks are started again (with on_failure "restart" only)."""
    threads: int | None = None
    """Threads for each rank; None divides the CPUs of our affinity mask."""
    portable: str | None = None
    """Level at which the ranks cap their instruction set (`cluster/instruction_set.py`); None leaves it to the environment."""
    bind: str = "cpus"
    """"cpus": each rank stays on its share of them, if there are enough for all and for the threads that were asked for; "none"."""
    voice: str = "all"
    """"all": every line with the rank that printed it in front. "first": rank 0 speaks for all, without it, and on a terminal as it
    prints, so that it may draw a progress bar (`cluster/terminal.py`); lines of others go to standard error, with their rank."""
    horovod: HorovodStart | None = None
    """For programs written for Horovod; each rank then sees all GPUs of the node."""
    num_on_nodes: tuple[int, ...] = ()
    """Processes on each node where they are not as many everywhere; empty: `num_local` on each."""
    timestamps: bool = False
    """Whether the time stands in front of every line."""
    told_by_stdin: bool = False
    """Whether signals come as words on standard input, whose end ends all; with several nodes its first line is the job's secret
    (`cluster/orders.py`)."""

    def __post_init__(self) -> None:
        _check_count("-n", self.num_local, 1, "processes on this node")
        _check_count("--nodes", self.num_nodes, 1, "nodes")
        if self.threads is not None:
            _check_count("--threads", self.threads, 1, "threads for each rank")
        _check_name("--engine", self.engine, ENGINES)
        _check_name("--allreduce", self.allreduce, ALLREDUCES)
        _check_name("--bind", self.bind, BINDINGS)
        _check_name("--on-failure", self.on_failure, POLICIES)
        _check_name("voice", self.voice, VOICES)
        if self.time_limit_s is not None and not 0 < self.time_limit_s < math.inf:
            raise UsageError(f"--time-limit-s must be a number of seconds above 0; received {self.time_limit_s:g}")
        self._check_nodes()
        self._check_restarts()

    def _check_nodes(self) -> None:
        if not 0 <= self.node_rank < self.num_nodes:
            raise UsageError(
                f"--node-rank must lie in 0..{self.num_nodes - 1} with --nodes {self.num_nodes}; received {self.node_rank}"
            )
        if self.rendezvous is not None:
            host_port(self.rendezvous, "--rendezvous")
        elif self.num_nodes > 1:
            raise UsageError(
                f"--nodes {self.num_nodes} needs --rendezvous host:port, the same on all nodes: a name of the first node that "
                "the others resolve, and a port that is free there, e.g. --rendezvous node01:29400"
            )
        counts = self.num_on_nodes
        if counts and (len(counts) != self.num_nodes or min(counts) < 1 or counts[self.node_rank] != self.num_local):
            raise UsageError(
                f"--on-nodes {','.join(map(str, counts))} must be {self.num_nodes} numbers (--nodes), of which number "
                f"{self.node_rank} (--node-rank) is {self.num_local} (-n); correct it"
            )

    def _check_restarts(self) -> None:
        if self.on_failure == "restart":
            _check_count("--restarts", self.restarts, 1, "times to start again")
            if self.num_nodes > 1:
                raise UsageError(
                    "--on-failure restart works on one node, as a launcher cannot end the ranks of other nodes; "
                    "with --nodes let the scheduler start the job again (sbatch --requeue)"
                )
        elif self.restarts:
            raise UsageError(f"--restarts {self.restarts} is read only with --on-failure restart; add it or leave this out")


def launch(config: LaunchConfig) -> int:
    """Local, blocking: run all ranks of this node to their end and give the exit code of the first that failed, or 0; 141 if
    our reader left.

    Only from the main thread. Nothing that the ranks started is left when it returns, nor when it is killed; what other threads
    of this process start meanwhile in a session of its own is taken for it. Raises `UsageError` before anything starts.
    """
    base = dict(os.environ)
    check_wishes(config, base)
    arguments = command(config.program)
    secret = secret_from_stdin() if config.told_by_stdin and config.num_nodes > 1 else ""
    if config.num_nodes == 1:
        refuse_inside_a_rank(base, config.num_local, config.horovod is not None)
    first = sum(config.num_on_nodes[: config.node_rank]) if config.num_on_nodes else config.node_rank * config.num_local
    logs = _make_logs(config.log_dir, range(first, first + config.num_local))
    _fill_standard_descriptors()
    with selectors.DefaultSelector() as selector, SignalInbox(selector) as inbox, Mortality(base) as mortality:
        colour = not base.get("NO_COLOR") and base.get("TERM") != "dumb"
        reports = config.told_by_stdin and config.num_nodes > 1
        console = Console(selector, colour, logs is not None, config.job, config.voice, config.timestamps, reports)
        if config.told_by_stdin:
            OrdersFromStdin(selector, inbox, lambda: console.report(HEARD))
        starter = _Starter(config, base, arguments, logs, selector, inbox, mortality, console, time(), secret)
        restart = 0
        while True:
            outcome = starter.live(restart)
            if outcome.code in NO_RESTART or outcome.stopped or restart == config.restarts:
                break
            restart += 1
            console.say(f"starting all ranks again (restart {restart} of {config.restarts})")
        pass_on_the_rest(selector, inbox, console)
    return outcome.code or code_of(console.failure)


@dataclass(frozen=True)
class _Starter:
    """Everything that stays the same from one life of the ranks to the next."""

    config: LaunchConfig
    base: Mapping[str, str]
    arguments: Sequence[str]
    logs: LogFolder | None
    selector: selectors.BaseSelector
    inbox: SignalInbox
    mortality: Mortality
    console: Console
    began_unix_s: float
    secret: str
    """Of the job, where another program started us; nobody can compute its token then."""

    def live(self, restart: int) -> Outcome:
        """Local, blocking: start all ranks and see them to their end."""
        ranks: list[RankProcess] = []
        placement = _placement(self.config, self.base, restart, self.began_unix_s, self.secret)
        world = World(
            ranks,
            self.selector,
            self.inbox,
            self.mortality,
            self.console,
            self.config.on_failure,
            lambda: self._start_rank(placement, 0),
        )
        try:
            self.mortality.mark("UNISONO_TOKEN", placement.token)
            self.mortality.mark("UNISONO_NODE_RANK", str(placement.node_rank))
            self._start(ranks, placement)
            return world.run()
        except BaseException:
            world.kill()
            world.run()
            raise
        finally:
            self.mortality.clear()

    def _start(self, ranks: list[RankProcess], placement: Placement) -> None:
        for local_rank in range(placement.num_local):
            ranks.append(self._start_rank(placement, local_rank))

    def _start_rank(self, placement: Placement, local_rank: int) -> RankProcess:
        rank = placement.first_rank + local_rank
        # A terminal is not passed on: the ranks are not in its foreground and could not read from it.
        stdin = None if rank == 0 and not os.isatty(0) and not self.config.told_by_stdin else subprocess.DEVNULL
        env = rank_environment(self.base, placement, local_rank)
        try:
            log = None if self.logs is None else self.logs.open(rank)
            with self.inbox.held_back() as mask:
                prepare = before_exec(mask, self._cpus(placement, local_rank))
                process, out, err = start_process(self.arguments, env, stdin, prepare)
        except OSError as error:
            raise UsageError(
                f"rank {rank} cannot be started ({self.arguments[0]}): {error.strerror}; "
                "check the program, and with a large -n the limits on processes and open files (ulimit -u, ulimit -n)"
            ) from error
        self.mortality.add(process.pid)
        return RankProcess(rank, process, self.console.attach(rank, out, err, log))

    def _cpus(self, placement: Placement, local_rank: int) -> frozenset[int] | None:
        mine = affinity.share(local_rank, placement.num_local)
        binds = self.config.bind == "cpus" and placement.num_local > 1 and hasattr(os, "sched_setaffinity")
        return mine if binds and mine is not None and placement.threads <= len(mine) else None


def _placement(config: LaunchConfig, base: Mapping[str, str], restart: int, began_unix_s: float, secret: str) -> Placement:
    job = config.job or Path(config.program[1 if config.program[0] == "-m" else 0]).name
    if config.num_nodes > 1:
        assert config.rendezvous is not None
        # All launchers find the same without talking. The counts are left out: ranks that disagree shall meet and say so.
        token = job_token("unisono run", config.rendezvous, config.job or "", *([secret] if secret else []))
    else:
        token = secrets.token_hex(16)  # a new one for each life: what is left of an earlier one cannot join
    return Placement(
        num_local=config.num_local,
        num_nodes=config.num_nodes,
        node_rank=config.node_rank,
        rendezvous=config.rendezvous or f"127.0.0.1:{derived_port(token)}",
        token=token,
        job=job,
        restart=restart,
        began_unix_s=began_unix_s,
        threads=config.threads or affinity.threads_per_worker(config.num_local),
        threads_asked=config.threads is not None,
        gpus=gpus.probe(base),
        wishes=wishes_of(config),
        num_on_nodes=config.num_on_nodes,
        horovod=config.horovod,
        terminal=f"{columns}:{os.getpid()}" if config.voice == "first" and (columns := columns_of(1)) else "",
    )


def cap(level: str | None) -> None:
    """Local: cap the libraries of this process at a level of portable mode, whoever started it; None leaves them as they are.

    Call it before PyTorch and NumPy are loaded: they read the variables then. Raises `UsageError` if it is too late, if the
    environment says otherwise or if this CPU cannot keep the level.
    """
    if level is None:
        return
    settings = settings_of(level, this_processor())
    refuse_contradictions(settings, os.environ)
    late = [one for one in settings if one.variable not in os.environ]
    if readers := sorted({one.reader for one in late if one.reader in sys.modules}):
        line = " ".join(shlex.quote(f"{one.variable}={one.value}") for one in settings)
        raise UsageError(
            f"--portable {level} comes too late: {' and '.join(readers)} {'is' if len(readers) == 1 else 'are'} loaded in this "
            "process and chose the instructions then; start the training by the command unisono train, which sets the variables "
            f"first, or start this program with: env {line}"
        )
    os.environ.update({one.variable: one.value for one in late})


def prepare_cublas() -> None:
    """Local: give cuBLAS a workspace with which it repeats its bits, unless one is chosen. Call it before a GPU is first used."""
    os.environ.setdefault(CUBLAS_WORKSPACE, CUBLAS_WORKSPACES[0])


def _make_logs(folder: Path | None, ranks: range) -> LogFolder | None:
    if folder is None:
        return None
    try:
        return LogFolder.make(folder, ranks)
    except OSError as error:
        raise UsageError(
            f"logs cannot be written to {folder} (--log-dir): {error.strerror} ({error.filename}); choose another folder"
        ) from error


def _fill_standard_descriptors() -> None:
    """A closed standard output must not become the number of one of our pipes."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        continue
    os.close(fd)


def _check_count(option: str, value: int, least: int, what: str) -> None:
    if value < least:
        raise UsageError(f"{option} must be at least {least} ({what}); received {value}")


def _check_name(option: str, value: str | None, known: Sequence[str]) -> None:
    if value is not None and value not in known:
        raise UsageError(f"{option} must be one of {', '.join(known)}; received {value!r}")
