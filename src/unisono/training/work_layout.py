"""Chooses the algorithm of a training and how its processes divide the work, before a model is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from unisono.algorithms.base import Algorithm, find_algorithm, make_options
from unisono.algorithms.roles import DEFAULT_LAYOUT, LayoutOptions, Roles
from unisono.errors import UsageError
from unisono.task.overrides import ResolvedTask
from unisono.training.shard_rules import choose_algorithm


class AlgorithmSetup(NamedTuple):
    """The algorithm of a training, its options, and the roles of the processes."""

    name: str
    kind: type[Algorithm]
    options: Any
    roles: Roles
    batch: int
    """Number of samples of a step: of all workers together, or of one worker where there is a server."""
    replay: Sequence[str] | None = None
    """The recorded order of calls that is to be repeated."""


def set_up_algorithm(
    resolved: ResolvedTask,
    algorithm_name: str,
    size: int,
    layout: LayoutOptions = DEFAULT_LAYOUT,
    replay: Sequence[str] | None = None,
) -> AlgorithmSetup:
    """Local: chooses the algorithm and the roles of `size` processes; refuses options that the algorithm does not read and numbers
    that it cannot divide."""
    name, kind, options, roles = _plan_algorithm(resolved, algorithm_name, size, layout._replace(replays=replay is not None))
    global_batch = resolved.task.global_batch
    if global_batch < roles.num_parts:
        raise UsageError(
            f"global_batch {global_batch} is too small for {roles.num_parts} workers (--global-batch); "
            f"use at least {roles.num_parts}, or fewer workers"
        )
    return AlgorithmSetup(name, kind, options, roles, roles.batch(global_batch), replay)


def count_parts(resolved: ResolvedTask, algorithm_name: str, size: int, layout: LayoutOptions) -> int:
    """Local: the number of parts into which such a training divides every global batch."""
    return _plan_algorithm(resolved, algorithm_name, size, layout)[-1].num_parts


def _plan_algorithm(
    resolved: ResolvedTask, algorithm_name: str, size: int, layout: LayoutOptions
) -> tuple[str, type[Algorithm], Any, Roles]:
    """Returns the algorithm's name, class and options, and the role that it gives to each process."""
    name, given = choose_algorithm(resolved.task, algorithm_name, resolved.algorithm)
    kind = find_algorithm(name)
    options = make_options(kind, name, given)
    return name, kind, options, kind.plan(options, size, layout._replace(clock=resolved.simulate))
