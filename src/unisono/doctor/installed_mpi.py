"""Which MPI is behind mpi4py, and whether it agrees with the mpirun that started us: asked in child processes.

A library that does not fit may end its process or never come back, so it is not loaded into this one.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from unisono.doctor.facts import MPI_LAUNCHERS, Facts, Mpi

LIMIT_S = 20.0

LOOK = """
import json, mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(json.dumps([" ".join(MPI.Get_library_version().strip("\\0").splitlines()[0].split(",")[0].split())]))
"""
TRY = """
import json
from mpi4py import MPI
print(json.dumps([MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size]))
"""


def find_installed(env: Mapping[str, str], launcher: str) -> Mpi:
    """Local, blocking: finds out which MPI is installed, without starting it."""
    started_by = _launcher(env, launcher)
    if importlib.util.find_spec("mpi4py") is None:
        return Mpi(launcher=started_by)
    try:
        package = version("mpi4py")
    except PackageNotFoundError:  # a site's own build may come without its records
        package = "of unknown version"
    found = Mpi(launcher=started_by, mpi4py=package)
    answer, error = _ask(LOOK)
    return replace(found, library=str(answer[0])) if answer else replace(found, error=error)


def try_start(mpi: Mpi) -> Mpi:
    """Collective over all processes of one mpirun, blocking: starts MPI in a child of each. Returns `mpi` with the rank and size
    that MPI reports, or with the error. At most once, and only if this process itself never starts MPI: to mpirun the child is
    this rank."""
    answer, error = _ask(TRY)
    return replace(mpi, rank=int(answer[0]), size=int(answer[1])) if answer else replace(mpi, error=error)


def mpi_family(name: str) -> str:
    """The family of an MPI library or launcher; those of one family work together. Empty if unknown."""
    words = name.lower()
    if "open mpi" in words or "spectrum" in words:
        return "Open MPI"
    return "MPICH" if any(word in words for word in ("mpich", "intel", "cray", "hpe", "mvapich")) else ""


def is_usable(mpi: Mpi) -> bool:
    """Pure: whether MPI can be started, as far as is known."""
    known = mpi_family(mpi.library)
    return bool(mpi.library) and not mpi.error and known in ("", mpi_family(mpi.launcher) or known)


def needs_mpi(ranks: Sequence[Facts]) -> bool:
    """Pure: whether the job itself would start MPI (or, with a GPU for each rank, NCCL instead)."""
    several = len({facts.node for facts in ranks}) > 1
    by_itself = several and all(facts.mpi.launcher and facts.mpi.mpi4py for facts in ranks)
    return by_itself or any(facts.engine == "mpi" for facts in ranks)


def _launcher(env: Mapping[str, str], launcher: str) -> str:
    """Returns the name of the MPI whose mpirun started this process; empty if none did."""
    if launcher not in MPI_LAUNCHERS:
        return ""
    if launcher == "openmpi":
        return f"Open MPI {env.get('OMPI_VERSION', '')}".strip()
    if any(name.startswith("I_MPI_HYDRA") for name in env):
        return "Intel MPI"
    return "Cray MPICH" if env.get("PALS_APID") else "MPICH"


def _ask(program: str) -> tuple[list[Any], str]:
    """Runs a program in a child process; returns its answer, or an empty list and the reason. The child inherits descriptors, as
    MPICH talks to its launcher through one."""
    command = [sys.executable, "-W", "ignore", "-c", program]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=LIMIT_S, close_fds=False
        )
    except subprocess.TimeoutExpired:
        return [], f"no answer within {LIMIT_S:g} s"
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip(" -*\t")]
    if done.returncode:
        return [], lines[-1] if lines else f"ended with code {done.returncode}"
    try:
        answer = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return [], f"answered {done.stdout.strip()!r}"
    return answer if isinstance(answer, list) else [], "gave no list"
