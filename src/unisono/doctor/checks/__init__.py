"""One file for each check of what usually goes wrong: a pure function of the gathered facts.

Imported by doctor; imports facts and findings only.
"""

from __future__ import annotations

from unisono.doctor.checks import count, gpu_sharing, limits, memory, mpi_match, names, network, sharing, software, thread_load
from unisono.doctor.facts import Job
from unisono.doctor.finding import Check, Finding

CHECKS: tuple[Check, ...] = (
    count.check,
    software.check,
    mpi_match.check,
    thread_load.check,
    memory.check,
    sharing.check,
    gpu_sharing.check,
    names.check,
    limits.check,
    network.check,
)
"""All checks, in the order of the report."""


def examine(job: Job) -> tuple[Finding, ...]:
    """Pure: the findings of all checks."""
    return tuple(finding for check in CHECKS for finding in check(job))
