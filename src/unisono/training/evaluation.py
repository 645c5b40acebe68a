"""Evaluates a data set: every sample once, whatever the number of workers, and metrics that are exact over all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from unisono.comm.base import Communicator
from unisono.data.loader import batches_in_order
from unisono.data.sharding_plan import cut
from unisono.data.source import Source
from unisono.metrics import Accumulator, Metric
from unisono.model.base import TEST, VALIDATION, Evaluated, Logged
from unisono.task.metric_names import metric_name
from unisono.training.logged_values import mean_logged_values


def evaluation_batch(global_batch: int, size: int) -> int:
    """Pure: number of samples of one worker in a step without gradients, which needs less memory than one with them."""
    return max(64, 2 * -(-global_batch // size))


class AddsBatches(Protocol):
    """Evaluates batches on a device without a wait for it."""

    def begin(self) -> None:
        """Begins an evaluation."""

    def add(self, batch: Any, found: Accumulator) -> None:
        """Evaluates a batch and adds its sums to those found."""


class Evaluates(Protocol):
    """The methods of a replica that an evaluation uses."""

    def begin(self, stage: str) -> None:
        """Begins an evaluation in this stage, e.g. "validate"."""

    def evaluate(self, batch: Any) -> Evaluated:
        """Returns the outputs, targets and loss sum of this batch; the weights do not change."""

    def end(self, stage: str) -> Logged | None:
        """Ends the evaluation of this stage; returns the sums of what the model logged, or None if it logs nothing."""


@dataclass(frozen=True)
class Shards:
    """Divides an evaluation into parts of fixed content, so that no bit of it depends on where each is computed."""

    number: int
    own: range
    """Those of this rank; empty on one that evaluates nothing."""
    begin: Callable[[int], None]
    """Told which shard comes next, and `number` after the last: what is drawn in it is its own."""


@dataclass(frozen=True)
class EvaluationPlan:
    """The metrics, the batch size and the hooks with which a data set is evaluated."""

    metrics: Sequence[Metric]
    batch: int
    """Number of samples that a rank evaluates at a time."""
    tell: Callable[[int, int], None] | None = None
    """Called with the number of samples of this rank that are done, and that of all."""
    stop_requested: Callable[[], bool] | None = None
    """Called after each batch: whether to stop."""
    shards: Shards | None = None
    batches: Callable[[slice, int], Iterator[tuple[slice, Any]]] | None = None
    """The batches of a range, of data that lie on the device; None where they are read from the source."""
    captured: AddsBatches | None = None
    """Evaluates batches of the replica as recorded work; None where each runs as it is."""


def evaluate(comm: Communicator, adapter: Evaluates, source: Source, plan: EvaluationPlan, prefix: str) -> dict[str, float] | None:
    """Collective, blocking: computes loss and metrics over all samples. Each rank takes one stretch, in the order of ranks, so
    that scores gathered by rank are in the order of samples. None if a stop was requested of a rank before its end.

    With `shards` the stretches are those of the shards, wherever they are computed, and their sums are added in the order of
    shards."""
    found, shards = Accumulator(plan.metrics), plan.shards
    stage = TEST if prefix == "test_" else VALIDATION
    adapter.begin(stage)
    if plan.captured is not None:
        plan.captured.begin()
    parts, own = (comm.size, range(comm.rank, comm.rank + 1)) if shards is None else (shards.number, shards.own)
    mine = slice(cut(len(source), parts, own.start).start, cut(len(source), parts, own.stop - 1).stop)
    is_whole = True
    for part in own:
        if shards is not None:
            shards.begin(part)
        mine_of_part = cut(len(source), parts, part)
        of_source = partial(batches_in_order, source)
        for where, arrays in (plan.batches or of_source)(mine_of_part, plan.batch):
            if plan.captured is not None:
                plan.captured.add(arrays, found)
            else:
                found.add_evaluated(adapter.evaluate(arrays))
            if plan.tell is not None:
                plan.tell(where.stop - mine.start, mine.stop - mine.start)
            if plan.stop_requested is not None and plan.stop_requested() and where.stop < mine.stop:
                is_whole = False
                break
        if not is_whole:
            break
        if shards is not None:
            found.end_chunk()
    if shards is not None:
        shards.begin(shards.number)  # what comes after the last shard does not depend on which it was
    if plan.stop_requested is not None and not all(comm.allgather_object(is_whole)):
        return None
    logged = adapter.end(stage)
    found.combine(comm, in_chunks=shards is not None)
    values = found.values(prefix)
    if logged is None:
        return values
    if not found.loss_weight:  # a validation_step need not return one
        del values[f"{prefix}loss"]
    return values | {metric_name(prefix, name): value for name, value in mean_logged_values(comm, logged).items()}
