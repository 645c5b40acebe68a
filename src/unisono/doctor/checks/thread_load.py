"""Checks the number of threads of the workers against the CPUs that they may use."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from unisono.doctor.facts import MPI_LAUNCHERS, Facts, Job, with_unit
from unisono.doctor.finding import OK, WARN, Finding


def check(job: Job) -> Iterator[Finding]:
    """Yields for each node findings on CPUs that SLURM or mpirun withholds, and on the number of threads for the CPUs."""
    for node, ranks in job.nodes.items():
        findings = [*_lost_by_slurm(node, ranks), *_lost_by_binding(node, ranks), *_numbers(node, ranks)]
        yield from findings


def num_threads(facts: Facts) -> int:
    """Number of threads with which a rank computes: that of torch, else the one that OpenMP would use."""
    asked = facts.variables.get("OMP_NUM_THREADS", "").partition(",")[0]
    return facts.torch.threads or (int(asked) if asked.isdigit() and int(asked) else len(facts.cpus))


def _lost_by_slurm(node: str, ranks: Sequence[Facts]) -> Iterator[Finding]:
    """Yields a warning if a rank may use fewer CPUs than SLURM was asked for per task."""
    short = [facts for facts in ranks if facts.cpus_per_task is not None and len(facts.cpus) < facts.cpus_per_task]
    if short:
        one = short[0]
        yield Finding(
            WARN,
            "threads",
            f"rank {one.rank} may use {with_unit(len(one.cpus), 'CPU')}, though {one.cpus_per_task} per task were requested "
            "(SLURM_CPUS_PER_TASK)",
            "before srun, export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK: since SLURM 22.05 srun does not inherit it",
            node,
        )


def _lost_by_binding(node: str, ranks: Sequence[Facts]) -> Iterator[Finding]:
    """Yields a warning if mpirun bound the ranks to at most half of the CPUs that it was given."""
    bound, given = _union(ranks), {cpu for facts in ranks for cpu in facts.parent_cpus}
    if ranks[0].launcher in MPI_LAUNCHERS and 2 * len(bound) <= len(given):
        yield Finding(
            WARN,
            "threads",
            f"mpirun bound {with_unit(len(ranks), 'rank')} to {with_unit(len(bound), 'CPU')} of the {len(given)} that it was given",
            "use mpirun --bind-to none, or bind each rank to its share: Open MPI --map-by slot:PE=N, Intel MPI I_MPI_PIN_DOMAIN=N",
            node,
        )


def _numbers(node: str, ranks: Sequence[Facts]) -> Iterator[Finding]:
    """Yields one finding: how many threads compute on how many CPUs of a node, as a warning if they are too many or far too few."""
    mask = len(_union(ranks))
    quotas = [facts.cpu_quota for facts in ranks if facts.cpu_quota is not None]
    usable = min([mask, *(max(1, math.ceil(quota)) for quota in quotas)])
    share = max(1, usable // len(ranks))
    threads = sum(map(num_threads, ranks))
    each = sorted({num_threads(facts) for facts in ranks})
    whose = " each" if len(ranks) > 1 else ""
    shown = f"{with_unit(len(ranks), 'rank')} with {' or '.join(map(str, each))} thread{'s' if each != [1] else ''}{whose}"
    where = f"{usable} CPU{'s' if usable != 1 else ''}"
    limit = f" (the affinity mask has {mask}, but the control group limits CPU time to {usable})" if usable < mask else ""
    variable = ranks[0].variables.get("OMP_NUM_THREADS")
    set_to = f"OMP_NUM_THREADS is {variable}" if variable else "OMP_NUM_THREADS is not set"
    crowded = [facts for facts in ranks if num_threads(facts) > len(facts.cpus)]
    if len(ranks) > usable:
        remedy = f"start at most {with_unit(usable, 'rank')} on this node, or request more CPUs"
        remedy += "" if threads == len(ranks) else f"; export OMP_NUM_THREADS={share}"
        yield Finding(WARN, "threads", f"{shown} share {where}{limit}", remedy, node)
    elif threads > usable or crowded:
        narrow = f"; rank {crowded[0].rank} may use {with_unit(len(crowded[0].cpus), 'CPU')}" if crowded and not limit else ""
        fact = f"{shown} on {where}{limit}: {threads} threads get in each other's way{narrow} ({set_to})"
        least = min([share, *(len(facts.cpus) for facts in crowded)])
        yield Finding(WARN, "threads", fact, f"export OMP_NUM_THREADS={least}, or give each rank more CPUs of its own", node)
    elif 2 * threads < usable and not any(facts.our_gpus for facts in ranks):
        remedy = f"export OMP_NUM_THREADS={share} (torchrun sets it to 1 if it is not set)"
        yield Finding(WARN, "threads", f"{shown} on {where}{limit} leave most of them idle ({set_to})", remedy, node)
    else:
        yield Finding(OK, "threads", f"{shown} on {where}{limit}", node=node)


def _union(ranks: Sequence[Facts]) -> set[int]:
    """Returns the CPUs that at least one rank may use."""
    return {cpu for facts in ranks for cpu in facts.cpus}
