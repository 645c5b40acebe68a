"""One file for each thing that usually goes wrong: a pure function of the gathered facts."""

from __future__ import annotations

from unisono.doctor.checks import count, gpus, limits, memory, mpi, names, network, sharing, software, threads
from unisono.doctor.facts import Job
from unisono.doctor.finding import Check, Finding

CHECKS: tuple[Check, ...] = (
    count.check,
    software.check,
    mpi.check,
    threads.check,
    memory.check,
    sharing.check,
    gpus.check,
    names.check,
    limits.check,
    network.check,
)
"""In the order of the report."""


def examine(job: Job) -> tuple[Finding, ...]:
    """Pure: the findings of all checks."""
    return tuple(finding for check in CHECKS for finding in check(job))
