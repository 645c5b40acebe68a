"""Checks limits of the shell that stop large jobs: open files, and locked memory for InfiniBand."""

from __future__ import annotations

from collections.abc import Iterator

from unisono.doctor.facts import Job
from unisono.doctor.finding import OK, WARN, Finding

FILES, FILES_FOR_RANK = 256, 4
"""Files that a rank opens in any case, and for each other rank (connections of the engine, of the control plane, and segments)."""
LEAST_LOCKED = 1 << 30


def check(job: Job) -> Iterator[Finding]:
    """Yields a node's warnings on too few open files or too little locked memory (InfiniBand); an ok if there are none."""
    needed = FILES + FILES_FOR_RANK * job.size
    for node, ranks in job.nodes.items():
        findings = []
        files = min((facts.open_files for facts in ranks if facts.open_files is not None), default=None)
        if files is not None and files < needed:
            hard = max((facts.open_files_hard or needed) for facts in ranks)
            remedy = f"run ulimit -n {min(hard, max(4096, needed))} before the program (the hard limit is {hard})"
            findings.append(Finding(WARN, "limits", f"{files} open files are allowed, but {needed} may be needed", remedy, node))
        locked = min((facts.locked_bytes for facts in ranks if facts.locked_bytes is not None), default=None)
        rdma = [one.name for one in ranks[0].interfaces if one.kind == "rdma"]
        if rdma and locked is not None and locked < LEAST_LOCKED:
            fact = f"InfiniBand ({', '.join(rdma)}) needs locked memory, but only {locked >> 10} KiB are allowed"
            remedy = "run ulimit -l unlimited before the program; if refused, ask the administrators (limits.conf, LimitMEMLOCK)"
            findings.append(Finding(WARN, "limits", fact, remedy, node))
        yield from findings or [Finding(OK, "limits", f"{files or 'any number of'} open files", node=node)]
