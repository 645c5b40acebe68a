"""Can the ranks of a node open each other's memory, as engine shm does?"""

from __future__ import annotations

from collections.abc import Iterator

from unisono.doctor.facts import Job
from unisono.doctor.finding import FAIL, OK, WARN, Finding


def check(job: Job) -> Iterator[Finding]:
    for node, ranks in job.nodes.items():
        blind = [facts for facts in ranks if facts.unreachable]
        if blind:
            peer, why = next(iter(blind[0].unreachable.items()))
            level = FAIL if blind[0].engine in ("auto", "shm") else WARN
            yield Finding(
                level,
                "sharing",
                f"rank {blind[0].rank} cannot open the memory of rank {peer} on the same node ({why}), as engine shm must",
                "run all ranks of a node as one user in one container or process name space (docker --pid=host; Apptainer "
                "without --pid), or take another way: export UNISONO_ENGINE=gloo and UNISONO_ALLREDUCE=engine",
                node,
            )
        elif len(ranks) > 1:
            yield Finding(OK, "sharing", f"all {len(ranks)} ranks can open each other's memory", node=node)
