"""What depends on which samples meet on a worker: batch normalisation, losses that are no mean over samples, weights that are sums,
layers that draw random numbers. Each worker takes its own samples, as nothing over all workers exists yet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from unisono.errors import UsageError
from unisono.model.recognise import MIXES_SAMPLES, is_keras_module

if TYPE_CHECKING:
    from unisono.model.keras.pure import Pure

INSTEAD = "group or layer normalisation, which does not depend on other samples"
OF_LIGHTNING = "a mean over samples, or a plain task, whose loss may have an ignore_label or return (sum, weight)"


def refuse_synchronised(model: nn.Module, num_learning: int, in_shards: bool) -> None:
    """Local: refuses batch-norm over all workers, and weights of Keras that are summed over them, where several processes learn, or
    where batches are cut into shards."""
    if (in_shards or num_learning > 1) and (summed := next(_summed_weights(model), None)):
        raise UsageError(
            f"{summed} is a sum over all samples (aggregation='sum'), but what layers keep is averaged over the workers; keep a "
            "mean in it (aggregation='mean'), count in a keras.metrics.Sum of the layer, or use one worker"
        )
    found = next(_synchronised(model), None)
    if found is None:
        return
    if in_shards:
        raise UsageError(
            f"{found}, which mixes the samples of the shards (--shards) in the order of the workers; use plain batch-norm, which "
            f"here has the statistics of each shard, or {INSTEAD}"
        )
    if num_learning > 1:
        raise UsageError(
            f"{found}, but statistics over all of the {num_learning} workers are not available yet, and each would silently take "
            f"those of its own samples; use plain batch-norm if that is meant, {INSTEAD}, or one worker"
        )


def batch_note(model: nn.Module, num_learning: int, in_shards: bool, can_shard: bool) -> str:
    """Local: a note on plain batch-norm, or on a loss that is no mean over samples, where the result depends on the number of
    workers; else empty. `can_shard`: whether the batch can be cut into shards."""
    norm, loss = next(_plain(model), None), _mixing_loss(model)
    if not (norm or loss) or num_learning == 1 or in_shards:
        return ""
    instead = [INSTEAD] if norm else [OF_LIGHTNING] if getattr(model, MIXES_SAMPLES, False) else []
    if can_shard:
        instead.append("--shards S, which cuts a batch alike for any number of workers")
    what = (
        f"batch-norm ({norm}) takes its statistics from the samples of each worker"
        if norm
        else f"{loss} is no mean over samples, and each worker computes it from its own"
    )
    return f"{what}, so the result depends on the number of workers; if that matters use {', or '.join(instead) or 'one worker'}"


def accumulate_note(model: nn.Module, accumulate: int) -> str:
    """Local: a note where micro-batches change the result, because the model looks at other samples of a batch; else empty."""
    norm, loss = next(_plain(model), None), _mixing_loss(model)
    if accumulate == 1 or not (norm or loss):
        return ""
    what = f"batch-norm ({norm}) takes its statistics from" if norm else f"{loss} is no mean over samples, and is of"
    return (
        f"{what} each micro-batch (accumulate {accumulate}), so the result is another one than that of whole batches; if that "
        f"matters use {INSTEAD if norm else 'another loss'}, or accumulate 1"
    )


def effect_of_workers(model: nn.Module) -> str:
    """Local: what another number of workers means for the result of a training in lock step: "the result will ..."."""
    if norm := next(_plain(model), None):
        return f"differ, as batch-norm ({norm}) takes its statistics from the samples of each worker"
    if loss := _mixing_loss(model):
        return f"differ, as {loss} is no mean over samples, and each worker computes it from its own"
    return effect_of_device(model, "on other workers")


def effect_of_device(model: nn.Module, where: str = "on another device") -> str:
    """Local: likewise, of another device."""
    if layer := next(_drawing(model), None):
        return f"differ, as {layer} draws other random numbers {where}"
    return "be the same only up to rounding, unless the model itself draws random numbers"


def _drawing(model: nn.Module) -> Iterator[str]:
    """Yields the layers that draw random numbers in training."""
    for name, module in model.named_modules():
        rate = module.p if isinstance(module, _DropoutNd) else getattr(module, "dropout", 0.0)  # that of nn.LSTM is a number
        if module.training and ((isinstance(rate, float) and rate > 0) or isinstance(module, nn.RReLU)):
            yield f"{type(module).__name__} (module {name})" if name else type(module).__name__
    pure = _pure(model)
    if pure is not None and pure.seeds:
        yield "a layer of the Keras model"


def _mixing_loss(model: nn.Module) -> str:
    """Local: the loss of a Keras model or a LightningModule that is no mean over samples, for messages; else empty."""
    if getattr(model, MIXES_SAMPLES, False):
        return "the loss of training_step"
    pure = _pure(model)
    return f"the loss {pure.mixing_loss!r}" if pure is not None and pure.mixing_loss else ""


def _summed_weights(model: nn.Module) -> Iterator[str]:
    """Yields what is a sum over all workers, as a sentence begins."""
    pure = _pure(model)
    if pure is not None:
        yield from (f"the weight {pure.name(one)}" for one in pure.non_trainable if one.aggregation == "sum")


def _synchronised(model: nn.Module) -> Iterator[str]:
    """Yields what is batch-norm over all workers, as a sentence begins."""
    for name, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            yield f"{f'module {name}' if name else 'the model'} is a SyncBatchNorm"
    for layer in _keras_norms(model):
        if layer.synchronized:
            yield f"the layer {layer.name} is a BatchNormalization with synchronized=True"


def _plain(model: nn.Module) -> Iterator[str]:
    """Yields the batch-norms that take statistics in training; those in evaluation mode, or frozen, use what they have."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.training:
            yield f"module {name}" if name else "the model"
    for layer in _keras_norms(model):
        if layer.trainable:
            yield f"layer {layer.name}"


def _keras_norms(model: nn.Module) -> Iterator[Any]:
    """Yields the layers of a Keras model that are its batch-norm."""
    pure = _pure(model)
    if pure is not None:
        from unisono.model.keras.pure import layers_of

        for layer in layers_of(pure.model):
            if any(kind.__name__ == "BatchNormalization" and kind.__module__.startswith("keras.") for kind in type(layer).__mro__):
                yield layer


def _pure(model: nn.Module) -> Pure | None:
    """Returns a Keras model as a function; None for any other model."""
    return model.pure if is_keras_module(model) else None  # type: ignore[return-value]
