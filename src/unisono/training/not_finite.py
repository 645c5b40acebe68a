"""Finds the samples whose loss is not finite: searched only after it happened, sample by sample."""

from __future__ import annotations

import math
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import numpy as np

from unisono.comm.base import Communicator
from unisono.data.loader import Portion
from unisono.data.tree import leaves, map_tree, num_rows
from unisono.model.base import ModelAdapter
from unisono.model.tail import StepStats
from unisono.model.torch.stored_batch import StoredBatch

SHOWN = 10


def describe_not_finite(comm: Communicator, adapter: ModelAdapter, stats: StepStats, portion: Portion) -> str:
    """Collective, blocking: a sentence that names the step, the ranks and the numbers of samples whose loss is not finite."""
    by_rank = comm.allgather_object(_describe_own_samples(adapter, portion))
    told = [f"on rank {rank} {text}" for rank, text in enumerate(by_rank) if text]
    if told:
        where = "; ".join(told)
    else:
        numbers = comm.allgather_object(_join_numbers(portion.indices))
        shown = "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(numbers))
        where = f"each sample alone gives a finite loss, so check the model and the learning rate; samples of the batch: {shown}"
    return f"the loss or gradient of step {stats.step} is not finite ({stats.loss_sum:g}): {where}"


def _describe_own_samples(adapter: ModelAdapter, portion: Portion) -> str:
    """Local: describes this rank's samples whose loss is not finite; empty if each is finite by itself."""
    bad, place = [], ""
    position = 0
    for batch in portion.micro_batches:
        for row in _single_samples(batch) if batch is not None else ():
            found = next((where for where, leaf in leaves(on_host(row)) if _is_bad(leaf)), "")
            loss = adapter.evaluate(row).loss_sum if adapter.has_sample_losses else None
            if found or (loss is not None and not math.isfinite(float(loss))):
                bad.append(int(portion.indices[position]))
                place = place or found
            position += 1
    if not bad:
        return ""
    because = f", whose data hold NaN or infinity at {place}" if place else ""
    return f"sample{'s' if len(bad) > 1 else ''} {_join_numbers(np.array(bad))}{because}"


def _single_samples(batch: Any) -> Iterator[Any]:
    """Yields each sample of the batch as a batch of one."""
    return (map_tree(itemgetter(slice(row, row + 1)), batch) for row in range(num_rows(batch)))


def on_host(batch: Any) -> Any:
    """Local; waits for the device where samples lie there: the arrays of a batch."""
    if not isinstance(batch, StoredBatch):
        return batch
    device = batch.samples.device
    return map_tree(lambda leaf: leaf.cpu().numpy(), batch.gather(device).prepare())


def _is_bad(leaf: Any) -> bool:
    """Returns whether a floating array has a value that is infinite or no number; False for other dtypes."""
    array = np.asarray(leaf)
    return bool(np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all())


def _join_numbers(numbers: Any) -> str:
    """Returns the first `SHOWN` numbers, joined with commas, and how many there are if that is more; "none" if none."""
    shown = ", ".join(str(number) for number in numbers[:SHOWN])
    return f"{shown}, ... ({len(numbers)} in all)" if len(numbers) > SHOWN else shown or "none"
