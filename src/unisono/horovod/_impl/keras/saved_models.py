"""Models from files, with their optimisers distributed again. Local."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unisono.horovod._impl.compressor import Compressor
from unisono.horovod._impl.keras.compile_hooks import check_compiled
from unisono.horovod._impl.keras.compression import Compression
from unisono.horovod._impl.keras.distributed_optimizer import DistributedOptimizer


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: type[Compressor] = Compression.none,
    legacy_opts: bool = False,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
) -> Any:
    """Loads a model that was saved, with or without this package. Its optimiser continues where it was, with gradients over all
    ranks. Local.

    Several backward passes are in the file as Keras knows them, which makes their mean; `backward_passes_per_step` and
    `average_aggregated_gradients` say again what `DistributedOptimizer` was told.
    """
    import keras

    if legacy_opts:
        raise ValueError("legacy_opts=True: Keras 3 has no legacy optimizers (hvd.load_model); leave it out")
    known = {kind.__name__: kind for kind in custom_optimizers or ()} | dict(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=known)
    if getattr(model, "optimizer", None) is not None:
        is_older = str(filepath).endswith((".h5", ".hdf5"))
        model.optimizer = DistributedOptimizer(
            _with_state(filepath, model) if is_older else model.optimizer,
            compression=compression,
            backward_passes_per_step=backward_passes_per_step,
            average_aggregated_gradients=average_aggregated_gradients,
        )
        if getattr(model, "_compile_config", None) is not None:
            model._compile_config.config["optimizer"] = model.optimizer  # what `save` writes
        check_compiled(model)
    return model


def _with_state(filepath: Any, model: Any) -> Any:
    """The optimiser that is in a file of the older format, with its state. Keras leaves the state in the file: it builds the
    optimiser without variables, into which nothing fits."""
    from keras.src.legacy.saving import legacy_h5_format as older

    with older.h5py.File(filepath, "r") as file:
        found = older.load_optimizer_weights_from_hdf5_group(file) if "optimizer_weights" in file else []
        values = [np.asarray(one) for one in found]
    if not values:
        return model.optimizer
    made = type(model.optimizer).from_config(model.optimizer.get_config())
    made.build(model.trainable_variables)
    if [tuple(one.shape) for one in made.variables] == [value.shape for value in values]:
        for variable, value in zip(made.variables, values, strict=True):
            variable.assign(value)
    else:
        warnings.warn(
            f"the optimizer state in {filepath} does not fit the model, so the optimizer starts without state (hvd.load_model); "
            "save the model as .keras",
            stacklevel=3,
        )
    return made
