"""Models from files, with their optimisers distributed again. Local."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unisono.compat.horovod.compressor import Compressor
from unisono.compat.horovod.keras.compiling import look_at
from unisono.compat.horovod.keras.compression import Compression
from unisono.compat.horovod.keras.optimizer import DistributedOptimizer


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: type[Compressor] = Compression.none,
    legacy_opts: bool = False,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
) -> Any:
    """Local: a model that was saved, with or without us. Its optimiser goes on where it was, with the gradients of all ranks.

    Several backward passes are in the file as Keras knows them, which makes their mean; `backward_passes_per_step` and
    `average_aggregated_gradients` say again what `DistributedOptimizer` was told.
    """
    import keras

    if legacy_opts:
        raise ValueError("legacy_opts=True: Keras 3 has no legacy optimizers (hvd.load_model); leave it out")
    known = {kind.__name__: kind for kind in custom_optimizers or ()} | dict(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=known)
    if getattr(model, "optimizer", None) is not None:
        model.optimizer = DistributedOptimizer(
            model.optimizer,
            compression=compression,
            backward_passes_per_step=backward_passes_per_step,
            average_aggregated_gradients=average_aggregated_gradients,
        )
        look_at(model)
    return model
