"""Which algorithm a training has, and how its processes divide the work. Needs no model: it can be asked before one is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from unisono.algorithms.base import find_algorithm, make_options
from unisono.errors import UsageError
from unisono.overrides import Changed
from unisono.training.central.assemble import check_clock, division_of
from unisono.training.central.division import Asked, Division
from unisono.training.group_rules import check_group
from unisono.training.shard_rules import agreement


class Agreement(NamedTuple):
    """How the processes of a training agree."""

    name: str
    kind: type[Any]
    options: Any
    division: Division | None
    """None for an algorithm in step, which has no server."""
    batch: int
    """Samples of a step: of all workers together, or through a centre of each."""


def agreement_of(
    changed: Changed,
    algorithm_name: str,
    size: int,
    asked: Asked = Asked(),  # noqa: B008 - it cannot change
    replay: Sequence[str] | None = None,
) -> Agreement:
    """Local: of `size` processes; refuses options that the algorithm does not read and numbers that it cannot divide."""
    task = changed.task
    name, given = agreement(task, algorithm_name, changed.algorithm)
    kind = find_algorithm(name)
    options = make_options(kind, name, given)
    division = division_of(kind, name, size, asked, replay)
    check_clock(changed.simulate, asked.simulate)
    if division is None:
        kind.plan(options, size)
        check_group(asked.group, name, kind, size)
    num_workers = size if division is None else division.num_workers
    if task.global_batch < num_workers:
        raise UsageError(
            f"global_batch {task.global_batch} is smaller than the {num_workers} workers (--global-batch); "
            f"use at least {num_workers}, or fewer workers"
        )
    batch = task.global_batch if division is None else division.batch_of_worker(task.global_batch)
    return Agreement(name, kind, options, division, batch)
