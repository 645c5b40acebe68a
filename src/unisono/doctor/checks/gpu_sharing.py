"""Checks whether each worker has a GPU of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from unisono.doctor.facts import Facts, Job, describe_ranks, with_unit
from unisono.doctor.finding import FAIL, OK, WARN, Finding


def check(job: Job) -> Iterator[Finding]:
    """Yields a node's findings on GPUs: whether torch can use them, ranks that share one or have none, idle ones, and unequal
    nodes."""
    for node, ranks in job.nodes.items():
        visible = tuple(dict.fromkeys(gpu for facts in ranks for gpu in facts.gpus))
        if not visible:
            yield Finding(OK, "gpus", "no GPU on this node, or none that this job may use", node=node)
        else:
            findings = [*_torch(node, ranks), *_binding(node, ranks, visible)]
            yield from findings or [Finding(OK, "gpus", _describe_gpus(ranks), node=node)]
    numbers = {node: len({gpu for facts in ranks for gpu in facts.our_gpus}) for node, ranks in job.nodes.items()}
    if len(set(numbers.values())) > 1:
        shown = ", ".join(f"{number} on {node}" for node, number in numbers.items())
        yield Finding(
            WARN, "gpus", f"nodes use different numbers of GPUs: {shown}", "request the same number on each node: --gpus-per-node"
        )


def _torch(node: str, ranks: Sequence[Facts]) -> Iterator[Finding]:
    """Yields a finding if ranks have GPUs that torch cannot use."""
    blind = [facts for facts in ranks if facts.our_gpus and facts.torch.version and not facts.torch.num_gpus]
    if not blind:
        return
    one = blind[0]
    whose = describe_ranks([facts.rank for facts in blind])
    if not one.torch.cuda:
        fact = f"{with_unit(len(one.gpus), 'GPU')} here, but torch {one.torch.version} is a build without CUDA ({whose})"
        yield Finding(WARN, "gpus", fact, "install a CUDA build (pytorch.org has the line), or load the site's module", node)
    else:
        said = one.torch.gpu_error or "CUDA finds none"
        fact = f"torch {one.torch.version} (CUDA {one.torch.cuda}) cannot use the GPU of {whose}: {said}"
        remedy = "see nvidia-smi; if the driver is older than this CUDA, install a torch built for an older CUDA"
        yield Finding(FAIL, "gpus", fact, remedy, node)


def _binding(node: str, ranks: Sequence[Facts], visible: Sequence[str]) -> Iterator[Finding]:
    """Yields findings on GPUs that several ranks share, ranks without one or with several, and idle GPUs."""
    users = Counter(gpu for facts in ranks for gpu in facts.our_gpu_ids)
    shared = [gpu for gpu, number in users.items() if number > 1]
    if shared:
        sharing = [facts for facts in ranks if shared[0] in facts.our_gpu_ids]
        fact = f"{describe_ranks([facts.rank for facts in sharing])} share GPU {sharing[0].our_gpus[0]}, which NCCL refuses"
        remedy = f"start {with_unit(len(users), 'rank')} on this node, or request a GPU for each task (--gpus-per-task=1)"
        yield Finding(WARN, "gpus", fact, remedy, node)
    without = [facts.rank for facts in ranks if not facts.our_gpus]
    if without:
        fact = f"{describe_ranks(without)} {'has' if len(without) == 1 else 'have'} no GPU while others on this node have one"
        yield Finding(WARN, "gpus", fact, "request one for each task: --gpus-per-task=1", node)
    several = [facts for facts in ranks if len(facts.our_gpus) > 1]
    idle = [gpu for gpu in visible if not any(gpu in facts.our_gpus for facts in ranks)]
    if several:
        one = several[0]
        fact = f"rank {one.rank} has {len(one.our_gpus)} GPUs of its own, but uses only one"
        remedy = f"start {len(one.our_gpus)} ranks instead of one (SLURM: --ntasks-per-node and --gpus-per-task=1)"
        yield Finding(WARN, "gpus", fact, remedy, node)
    elif idle and not shared:
        fact = (
            f"no rank uses GPU {', '.join(idle)} of this node ({with_unit(len(ranks), 'rank')}, {with_unit(len(visible), 'GPU')})"
        )
        yield Finding(WARN, "gpus", fact, f"start {len(visible)} ranks on this node, or request fewer GPUs", node)


def _describe_gpus(ranks: Sequence[Facts]) -> str:
    """Returns a text that names the GPU of each rank, and how it was chosen."""
    bound = all(len(facts.gpus) == 1 for facts in ranks)
    how = "each rank sees only its own" if bound else "chosen by local rank"
    return "; ".join(f"rank {facts.rank}: GPU {', '.join(facts.our_gpus)}" for facts in ranks) + f" ({how})"
