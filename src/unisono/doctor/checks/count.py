"""Checks whether there are as many processes as expected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from unisono.doctor.facts import Job, with_unit
from unisono.doctor.finding import FAIL, OK, WARN, Finding

START: Mapping[str, str] = {
    "unisono": "unisono run -n {n} ...",
    "torchrun": "torchrun --nproc-per-node {n} ... (on one node)",
    "openmpi": "mpirun -n {n} ...",
    "pmi": "mpirun -n {n} ...",
    "slurm": "srun -n {n} ... (and sbatch --ntasks {n})",
    "tf_config": "a TF_CONFIG that lists {n} tasks, on each of {n} processes",
    "local": "srun -n {n}, mpirun -n {n}, torchrun or `unisono run -n {n}`",
}


def check(job: Job) -> Iterator[Finding]:
    """Yields findings on the number of ranks: whether it is the one asked for, what the launcher notes, and whether nodes have
    equally many."""
    if not job.launcher:  # the variables made no sense, which is a finding already
        return
    found = f"{with_unit(job.size, 'process')}, started by {job.launcher}"
    if job.num_expected is None or job.num_expected == job.size:
        yield Finding(OK, "ranks", found + (", as requested (-n)" if job.num_expected else ""))
    elif job.launcher == "local" and not job.note:
        yield Finding(
            WARN,
            "ranks",
            f"-n requests {job.num_expected} processes, but this process is alone; "
            f"the results below are from {job.num_expected} processes that doctor started itself",
            "if srun, mpirun or torchrun started this command, its variables do not arrive here: a container or ssh may drop "
            "them, or Unisono does not know this launcher; otherwise start the program with "
            f"`unisono run -n {job.num_expected}`",
        )
    else:
        start = START.get(job.launcher, "the launcher with -n {n}").format(n=job.num_expected)
        yield Finding(FAIL, "ranks", f"{found}, but -n requests {job.num_expected}", f"start it with {start}{_hint(job)}")
    if job.note and (job.num_expected is None or job.num_expected == job.size):
        yield Finding(WARN, "ranks", job.note, "start ranks with srun, e.g. srun unisono doctor")
    sizes = {name: len(ranks) for name, ranks in job.nodes.items()}
    if len(set(sizes.values())) > 1:
        shown = ", ".join(f"{size} on {name}" for name, size in sizes.items())
        yield Finding(OK, "ranks", f"nodes have different numbers of processes: {shown}")


def _hint(job: Job) -> str:
    """Returns the launcher's note, to be appended to a remedy; empty without one."""
    return f"; {job.note}" if job.note else ""
