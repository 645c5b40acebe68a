"""As many processes as were asked for?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from unisono.doctor.facts import Job, counted
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
    if not job.launcher:  # the variables made no sense, which is a finding already
        return
    found = f"{counted(job.size, 'process')}, started by {job.launcher}"
    if job.asked is None or job.asked == job.size:
        yield Finding(OK, "ranks", found + (", as asked (-n)" if job.asked else ""))
    elif job.launcher == "local" and not job.note:
        yield Finding(
            WARN,
            "ranks",
            f"{job.asked} processes were asked for (-n), but this one is alone; "
            f"what follows was seen by {job.asked} that doctor started itself",
            "if srun, mpirun or torchrun started this command, their variables do not arrive here: a container or ssh may drop "
            "them, or it is a launcher that is not known; otherwise start the program with "
            f"`unisono run -n {job.asked}`",
        )
    else:
        start = START.get(job.launcher, "the launcher with -n {n}").format(n=job.asked)
        yield Finding(FAIL, "ranks", f"{found}, but {job.asked} were asked for (-n)", f"start it with {start}{_hint(job)}")
    if job.note and (job.asked is None or job.asked == job.size):
        yield Finding(WARN, "ranks", job.note, "start ranks with srun, e.g. srun unisono doctor")
    sizes = {name: len(ranks) for name, ranks in job.nodes.items()}
    if len(set(sizes.values())) > 1:
        shown = ", ".join(f"{size} on {name}" for name, size in sizes.items())
        yield Finding(OK, "ranks", f"nodes have different numbers of processes: {shown}")


def _hint(job: Job) -> str:
    return f"; {job.note}" if job.note else ""
