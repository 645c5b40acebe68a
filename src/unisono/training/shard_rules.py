"""What can be cut into shards (`--shards`), and into which sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from unisono.errors import UsageError
from unisono.task.task import Task

SHARDED = "sharded"
"""The algorithm that --shards stands for."""


def choose_algorithm(task: Task, name: str, given: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Pure: the name and options of the algorithm: that of shards if the task has them; refuses what cannot be cut into shards."""
    if task.shards is None:
        if name == SHARDED:
            raise UsageError("--algorithm sharded needs the number of shards: --shards S")
        return name, given
    why = ""
    if name not in ("allreduce", SHARDED):
        why = f"the result of --algorithm {name} depends on which worker has which samples; leave it out"
    elif task.step is not None:
        why = "the task's own step updates the weights before the other shards are computed; give the task a loss instead"
    elif task.accumulate > 1:
        why = f"each shard is a micro-batch already; leave accumulate {task.accumulate} (--accumulate) out"
    elif given:
        why = f"a training in shards has no option {next(iter(given))!r} (--set algorithm.{next(iter(given))}); leave it out"
    elif task.global_batch < task.shards:
        why = f"global_batch {task.global_batch} (--global-batch) leaves some shards without a sample; use at least {task.shards}"
    if why:
        raise UsageError(f"the training cannot be cut into {task.shards} shards (--shards): {why}")
    return SHARDED, {"num_shards": task.shards}


def shard_note(task: Task) -> str:
    """Pure: a note on the sizes of shards where they differ; empty where all are equal."""
    if task.shards is None or not task.global_batch % task.shards:
        return ""
    small, num_large = divmod(task.global_batch, task.shards)
    return (
        f"the batch of {task.global_batch} samples is cut into {task.shards - num_large} shards of {small} and {num_large} of "
        f"{small + 1} samples; every sample has the same weight"
    )


def lonely_note(task: Task, model: nn.Module, num_samples: int) -> str:
    """Pure: a warning where a shard would have one sample and the model has batch-norm; else empty."""
    sizes = {task.global_batch, num_samples % task.global_batch or task.global_batch}
    norms = [name for name, one in model.named_modules() if isinstance(one, nn.BatchNorm1d)]
    alone = [size for size in sizes if task.shards is not None and size < 2 * task.shards]
    if not norms or not alone:
        return ""
    return (
        f"warning: a batch of {alone[0]} samples leaves shards of one sample, for which PyTorch's batch-norm (module {norms[0]}) "
        "fails unless each sample has several values; use fewer --shards or another --global-batch"
    )


def refuse_unrepeatable(found: Sequence[str]) -> None:
    """Pure: refuses data of which two readings differ, as `describe_unrepeatable` describes them."""
    if found:
        raise UsageError(f"--shards promises the same bits with any number of workers, but {found[0]}")
