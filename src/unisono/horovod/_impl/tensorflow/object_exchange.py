"""Exchange of Python objects, from one rank to all or from all to all. Collective over the process set, blocking, also while
tracing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from unisono.horovod._impl.job.process_sets import ProcessSet, global_process_set
from unisono.horovod._impl.tensorflow.error_names import by_either_name
from unisono.horovod._impl.tensorflow.function_tracing import without_autograph
from unisono.horovod._impl.torch import object_exchange


@without_autograph
def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,  # noqa: ARG001 -- objects need no graph and no session here
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the root's object; those of other ranks are not used."""
    with by_either_name():
        return object_exchange.broadcast_object(obj, root_rank, name, process_set)


@without_autograph
def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """Returns `broadcast_object` as a function of the object alone. Local."""

    def broadcast(obj: Any) -> Any:
        return broadcast_object(obj, root_rank, session, name, process_set)

    return broadcast


@without_autograph
def allgather_object(
    obj: Any,
    session: Any = None,  # noqa: ARG001
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Returns the objects of all ranks, by rank of the set."""
    with by_either_name():
        return object_exchange.allgather_object(obj, name, process_set)
