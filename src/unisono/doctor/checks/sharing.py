"""Checks whether the ranks of a node can open each other's memory, as engine shm does."""

from __future__ import annotations

from collections.abc import Iterator

from unisono.doctor.facts import Facts, Job
from unisono.doctor.finding import FAIL, OK, WARN, Finding

TOGETHER = "run all ranks of a node as one user in one container or PID namespace (docker --pid=host; Apptainer without --pid)"


def check(job: Job) -> Iterator[Finding]:
    """Yields for each node whether its ranks can open each other's memory, which engine shm needs."""
    for node, ranks in job.nodes.items():
        blind = [facts for facts in ranks if facts.unreachable]
        if blind:
            yield _cannot(node, blind[0])
        elif len(ranks) > 1:
            yield Finding(OK, "sharing", f"all {len(ranks)} ranks can open each other's memory", node=node)


def _cannot(node: str, facts: Facts) -> Finding:
    """Returns the finding on a rank that cannot open a peer's memory: a failure if engine shm was asked for, else a warning."""
    peer, why = next(iter(facts.unreachable.items()))
    fact = f"rank {facts.rank} cannot open the memory of rank {peer} on the same node ({why})"
    if facts.engine == "shm":
        remedy = f"{TOGETHER}, or unset UNISONO_ENGINE, and gloo is used"
        return Finding(FAIL, "sharing", f"{fact}, but engine shm, which was requested, needs it", remedy, node)
    slower = "so they communicate over the network interface (gloo, unless MPI or NCCL is used), which is slower"
    return Finding(WARN, "sharing", f"{fact}, {slower}", f"{TOGETHER}, or accept the lower speed", node)
