"""Equal replicas: the variables of one rank on all ranks. Collective over the process set, blocking."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from unisono.horovod._impl.engine.operation_request import BROADCAST
from unisono.horovod._impl.job.process_sets import ProcessSet, global_process_set
from unisono.horovod._impl.job.process_state import PROCESS
from unisono.horovod._impl.torch.operations import synchronize
from unisono.horovod._impl.torch.submission import start

SEED = "seed_generator_state"
"""The name that Keras gives to the state of a random generator. Each rank keeps its own, or all would drop the same units."""


def shared_variables(variables: Iterable[Any]) -> list[Any]:
    """Returns the variables that are the same on all ranks. Pure."""
    return [variable for variable in variables if getattr(variable, "name", "") != SEED]


def broadcast_variables(variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Copies the root's values to all ranks, in place: `hvd.broadcast_variables(model.variables, root_rank=0)`."""
    from keras import ops

    held = shared_variables(variables)
    arrays = [np.array(ops.convert_to_numpy(variable), order="C") for variable in held]  # copies, which may be written to
    # As bytes, since frameworks know types that the engine does not.
    parts = [torch.from_numpy(array.reshape(-1).view(np.uint8)) for array in arrays]
    if parts:
        handle = start(
            BROADCAST, parts, process_set, lambda _: None, name="variables", outputs=parts, grouped=True, root=int(root_rank)
        )
        synchronize(handle)
    if PROCESS.topology.rank != root_rank:
        for variable, array in zip(held, arrays, strict=True):
            variable.assign(array)


def broadcast_global_variables(root_rank: int) -> None:
    """Raises `ValueError`: Keras 3 keeps no list of all variables."""
    raise ValueError(
        "broadcast_global_variables: Keras 3 has no list of all variables; give "
        f"hvd.callbacks.BroadcastGlobalVariablesCallback({root_rank}) to fit as a callback, or in your own training loop call "
        f"hvd.broadcast_variables(model.variables + optimizer.variables, root_rank={root_rank}) once both are built"
    )


def sync_variables(model: Any) -> None:
    """Writes the values that `fit` on JAX keeps outside the variables during an epoch back to the variables, so that values
    assigned to them now count in the next step. Local."""
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()


def holds_state_outside(model: Any) -> bool:
    """Whether `fit` on JAX has moved the values out of the variables, to keep them only once. Local."""
    return hasattr(model, "jax_state_sync") and any(variable._value is None for variable in model.variables)


def release_state(model: Any) -> None:
    """Discards the older values that a failed step on JAX has left outside the variables, so that values assigned to the variables
    now count in the next step. Local."""
    if hasattr(model, "jax_state_sync"):
        model._jax_state, model._jax_state_synced = None, True
