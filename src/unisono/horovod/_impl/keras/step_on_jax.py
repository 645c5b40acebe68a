"""Keras on JAX: a step that is traced calls back to the host, once for all gradients.

Not by `io_callback`: it copies large arguments by the thread pool of which the waiting callback holds a thread, and where a process
has few cores both wait for ever. Ours sees the arrays where they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from unisono.horovod._impl.keras.reduced_updates import CallableList
from unisono.horovod._impl.keras.step_parcels import Parcel, carry_arrays

HOST_CALL = Primitive("horovod_host_call")
"""In a traced step: arrays go to a function on the host, and arrays of the same shapes and types come back."""
HOST_CALL.multiple_results = True


jax.tree_util.register_pytree_node(CallableList, lambda held: (list(held), None), lambda _, held: CallableList(held))


@HOST_CALL.def_abstract_eval  # type: ignore[untyped-decorator]
def _result_types(*arrays: Any, function: Callable[..., Any]) -> list[Any]:  # noqa: ARG001
    """Returns the abstract results of a host call: shapes and types of its arguments."""
    return [array.update(weak_type=False) for array in arrays]


def _lower_to_callback(ctx: Any, *arrays: Any, function: Callable[..., Any]) -> Any:
    """Returns the compiled form of a host call: a callback into Python, with side effects."""
    results, _, _ = mlir.emit_python_callback(ctx, function, None, list(arrays), ctx.avals_in, ctx.avals_out, has_side_effect=True)
    return results


mlir.register_lowering(HOST_CALL, _lower_to_callback)


HAS_SLICES = False
"""Gradients are dense here."""


def through_host(parcels: Sequence[Parcel], tensors: Sequence[Any], shapes: Sequence[Any]) -> list[Any]:  # noqa: ARG001
    """Runs these operations from a traced step and returns their results. Collective, blocking when the step runs."""

    def carried(*arrays: Any) -> tuple[np.ndarray, ...]:
        return tuple(carry_arrays(parcels, arrays))

    if any(is_traced(tensor) for tensor in tensors):
        return list(HOST_CALL.bind(*tensors, function=carried))  # type: ignore[no-untyped-call]
    return [jax.numpy.asarray(array) for array in carried(*(np.asarray(tensor) for tensor in tensors))]


def is_traced(tensor: Any) -> bool:
    """Whether the value is known only when the step runs. Local."""
    return isinstance(tensor, jax.core.Tracer)


def is_slices(gradient: Any) -> bool:  # noqa: ARG001
    """Returns False: gradients are dense here."""
    return False
