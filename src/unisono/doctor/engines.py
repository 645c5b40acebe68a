"""Opens the engine that the job would use, and gloo, and measures what goes between two ranks. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from unisono.cluster.rendezvous import job_token
from unisono.cluster.topology import Topology
from unisono.comm.connect import connect
from unisono.doctor.bandwidth import measure
from unisono.doctor.facts import Facts, Measurement
from unisono.errors import UnisonoError

LIMIT_S = 20.0


@dataclass
class EngineTrial:
    """The result of trying engines: what was opened, and what was measured."""

    engine: str = ""
    """The engine of the job's communicator; empty if it could not be opened."""
    origin: str = ""
    """How that engine was chosen, as the communicator says it."""
    measurements: list[Measurement] = field(default_factory=list)
    """The measurements of this rank's pairs; on rank 0, which is in every pair, all of them."""


def try_engines(at: Topology, ranks: Sequence[Facts]) -> EngineTrial:
    """Opens the engines and measures them. Collective over all ranks, blocking for seconds. `at` has a rendezvous address and a
    token used by this examination only."""
    pairs = chosen_pairs(ranks)
    token = job_token(at.token, "job")
    trial = _whole(replace(at, token=token, secret=token), pairs)
    if trial.engine != "gloo":
        for left, right in pairs:
            trial.measurements.extend(_gloo(at, ranks, left, right))
    return trial


def chosen_pairs(ranks: Sequence[Facts]) -> list[tuple[int, int]]:
    """Pure: the pairs to measure: ranks 0 and 1, and rank 0 with the first rank of another node unless that is rank 1."""
    others = [facts.rank for facts in ranks if facts.node != ranks[0].node]
    return [(0, right) for right in dict.fromkeys([1, *others[:1]])]


def _whole(at: Topology, pairs: Sequence[tuple[int, int]]) -> EngineTrial:
    """Opens the communicator as the job would, and returns its engine and measurements."""
    trial = EngineTrial()
    try:
        with connect(topology=at, time_limit_s=LIMIT_S, quiet=True) as comm:
            trial.engine, trial.origin = comm.engine, comm.origin
            for pair in pairs:
                if comm.rank in pair:
                    speed, latency = measure(comm, *pair)
                    trial.measurements.append(Measurement(comm.engine, pair, True, speed, latency))
            comm.barrier()
    except UnisonoError as error:
        trial.measurements.append(Measurement(trial.engine or at.engine, pairs[0], True, error=str(error)))
    return trial


def _gloo(at: Topology, ranks: Sequence[Facts], left: int, right: int) -> list[Measurement]:
    """Returns measurements of gloo between two ranks, for comparison."""
    if at.global_rank not in (left, right):
        return []
    together = ranks[left].node == ranks[right].node
    place = int(at.global_rank == right)
    token = job_token(at.token, "gloo", str(right))
    pair = replace(
        at,
        token=token,
        secret=token,
        global_rank=place,
        world_size=2,
        local_rank=place if together else 0,
        local_size=2 if together else 1,
        node_rank=0 if together else place,
        num_nodes=1 if together else 2,
    )
    try:
        with connect(engine="gloo", allreduce="engine", topology=pair, time_limit_s=LIMIT_S, quiet=True) as comm:
            speed, latency = measure(comm, 0, 1)
            comm.barrier()
    except UnisonoError as error:
        return [Measurement("gloo", (left, right), False, error=str(error))]
    return [Measurement("gloo", (left, right), False, speed, latency)]
