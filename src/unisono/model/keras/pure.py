"""A Keras model as a pure function of its variables, the same on every backend.

    (trained, kept, seeds, batch) -> loss sum, weight, outputs, what has changed of kept, sums of metrics

Keras's own `compute_loss` gives the mean over the batch of one worker, with regularisers and added losses; times the number that it
divided by it is a sum, so that the quotient over all workers is what one worker with the whole batch would have computed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from threading import local
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from unisono.errors import UsageError

MEAN, WEIGHTED_MEAN = ("sum_over_batch_size", "mean"), "mean_with_sample_weight"


class PureResult(NamedTuple):
    """Result of one batch, in arrays of the backend."""

    loss_sum: Any
    weight: Any
    outputs: Any
    non_trainable: list[Any]
    """New values of those of `Pure.non_trainable` that are not frozen, in their order."""
    sums: list[Any]


class Pure:
    """A Keras model as a pure function. Its variables only name values: their own values are never read again."""

    def __init__(self, model: Any) -> None:
        self.model = model
        weights = unique(model.weights)
        trained = {id(variable) for variable in model.trainable_variables}
        once_trained = {id(variable) for layer in layers_of(model) for variable in layer._trainable_variables}
        self.trainable = [variable for variable in weights if id(variable) in trained]
        self.non_trainable = [variable for variable in weights if id(variable) not in trained]
        """Running statistics, counters, and what is frozen."""
        self.is_frozen = [id(variable) in once_trained for variable in self.non_trainable]
        known = {id(variable) for variable in (*weights, *model.metrics_variables)}
        self.seeds = [variable for variable in unique(model.variables) if id(variable) not in known]
        self.names = dict(zip(map(id, weights), stable_names(model, weights), strict=True))
        self.metrics: list[tuple[str, Any]] = []
        """Keras's metrics, each with the name under which it is reported; those of `compile` come first."""
        self.num_compiled = 0
        """Number of the metrics of `compile`."""
        self.metric_variables: list[Any] = []
        self.metric_starts: list[npt.NDArray[Any]] = []
        """Where each of these begins in plain Keras, mostly 0. What batches add to it is summed."""
        self.mixing_loss = ""
        """The name of a loss that is no mean over samples, e.g. as it compares them; empty if there is none."""
        self._latest = local()

    def remember(self, outputs: Any, sums: Tensor | Sequence[float]) -> None:
        """Local, for this thread: stores the metric sums of the batch that gave these outputs."""
        self._latest.batch = outputs, sums

    def remembered(self, outputs: Any) -> Tensor | Sequence[float]:
        """Local: returns the metric sums of the batch that gave these outputs, which must be the last one."""
        whose, sums = self._latest.batch
        assert whose is outputs, "outputs of another batch than the last one"
        found: Tensor | Sequence[float] = sums
        return found

    def name(self, variable: Any) -> str:
        """Pure: returns the name of a weight, the same in every process."""
        return self.names[id(variable)]

    def compute_metrics_with_batches(self) -> None:
        """Local, once Keras's metrics are built: from now on their sums are computed with every batch: those of `compile`, the
        losses of several outputs, and those that layers hold."""
        from keras.metrics import Mean, Sum

        compiled, losses = self.model._compile_metrics, self._losses()
        self.metrics = [] if compiled is None else list(zip(compiled.result(), compiled.metrics, strict=True))
        known = {id(one) for one in (self.model._loss_tracker, compiled, *losses)}
        held = [one for one in self.model.metrics if id(one) not in known]
        for metric in held:
            if not isinstance(metric, (Mean, Sum)):
                raise UsageError(
                    f"metric {metric.name!r} of a layer of the Keras model may not add up over workers; use keras.metrics.Mean or "
                    "Sum in the layer, or give the metric to compile"
                )
        reported = {"loss", *(name for name, _ in self.metrics)}
        self.num_compiled = len(self.metrics)
        # Of those with one name Keras tells the last; one that lies deep is found more than once.
        self.metrics += list({one.name: one for one in (*losses, *held) if one.name not in reported}.items())
        self.metric_variables = [variable for _, metric in self.metrics for variable in metric.variables]
        self.metric_starts = metric_starts([metric for _, metric in self.metrics])

    def _losses(self) -> list[Any]:
        """Returns the metrics that report the loss of each of several outputs."""
        return [] if self.model._compile_loss is None else list(self.model._compile_loss.metrics)

    def apply_model(self, trained: Sequence[Any], kept: Sequence[Any], seeds: Sequence[Any], inputs: Any) -> Any:
        """Pure: returns the outputs of the model in inference mode."""
        from keras import StatelessScope

        with StatelessScope(self._variable_values(trained, kept, seeds)):
            return self._call_model(inputs, training=False)

    def compute_batch(
        self,
        trained: Sequence[Any],
        kept: Sequence[Any],
        seeds: Sequence[Any],
        inputs: Any,
        targets: Any,
        weights: Any,
        training: bool,
    ) -> PureResult:
        """Pure: computes loss, outputs, new non-trainable values and metric sums of one batch."""
        from keras import StatelessScope, ops, tree
        from keras.src.backend import standardize_dtype

        mapping = self._variable_values(trained, kept, seeds)
        starts = [
            ops.convert_to_tensor(start.copy(), variable.dtype) if start.any() else ops.zeros(variable.shape, variable.dtype)
            for variable, start in zip(self.metric_variables, self.metric_starts, strict=True)
        ]
        mapping += zip(self.metric_variables, starts, strict=True)
        with StatelessScope(mapping, collect_losses=True) as scope:
            given = [scope.get_current_value(variable) for variable in self.trainable]
            outputs = self._call_model(inputs, training)
            mean = self.model._compute_loss(x=inputs, y=targets, y_pred=outputs, sample_weight=weights, training=training)
            exact = "float64" if standardize_dtype(mean.dtype) == "float64" else "float32"  # halves do not count far
            weight = self._weight(inputs, outputs, weights, exact)
            if self.model._compile_metrics is not None and self.metric_variables:  # some of them change the weights in place
                own = None if weights is None else tree.map_structure(ops.copy, weights)
                self.model._compile_metrics.update_state(targets, outputs, own)
            self.model._clear_losses()
            for variable, value in zip(self.trainable, given, strict=True):
                if scope.get_current_value(variable) is not value:
                    raise UsageError(
                        f"a layer changes {variable.path} during training (as SpectralNormalization does), and the update of all "
                        "workers would overwrite that; use another layer"
                    )
        kept_after = [
            scope.get_current_value(one) for one, is_frozen in zip(self.non_trainable, self.is_frozen, strict=True) if not is_frozen
        ]
        sums = [scope.get_current_value(variable) for variable in self.metric_variables]
        for number, start in enumerate(self.metric_starts):
            if start.any():
                sums[number] = sums[number] - starts[number]
        numbers = {id(variable): number for number, variable in enumerate(self.metric_variables)}
        for metric in self._losses():  # which Keras counts as one where a compiled step does not know how many samples come
            if id(metric.total) in numbers:
                rows = ops.cast(ops.shape(tree.flatten(inputs)[0])[0], metric.dtype)
                total, count = numbers[id(metric.total)], numbers[id(metric.count)]
                sums[total], sums[count] = ops.divide_no_nan(sums[total], sums[count]) * rows, rows
        return PureResult(ops.cast(mean, exact) * weight, weight, outputs, kept_after, sums)

    def _call_model(self, inputs: Any, training: bool) -> Any:
        """Returns the model's outputs; it is told `training` if its call takes that."""
        given = {"training": training} if self.model._call_has_training_arg else {}
        return self.model(inputs, **given)

    def _variable_values(self, trained: Sequence[Any], kept: Sequence[Any], seeds: Sequence[Any]) -> list[tuple[Any, Any]]:
        """Returns pairs of a variable and the value it is to have: trainable, non-trainable, seeds."""
        return [
            *zip(self.trainable, trained, strict=True),
            *zip(self.non_trainable, kept, strict=True),
            *zip(self.seeds, seeds, strict=True),
        ]

    def _weight(self, inputs: Any, outputs: Any, weights: Any, dtype: Any) -> Any:
        """Returns the number that the loss divided by: samples, or where it leaves some out, those that count."""
        from keras import ops, tree
        from keras.src.backend import get_keras_mask  # also of a tracer of JAX, which cannot have attributes
        from keras.src.losses.loss import apply_mask

        entries = [] if self.model._compile_loss is None else list(self.model._compile_loss._flat_losses)
        losses = [entry.loss for entry in entries]
        judged = [_at(entry.path, outputs) for entry in entries]
        masks = [mask for one in judged if (mask := get_keras_mask(one)) is not None]
        if any(getattr(loss, "ignore_class", None) is not None for loss in losses):
            raise UsageError(
                "ignore_class of a loss is not possible, as the number of samples left out is not known; give these samples "
                "weight 0, and the loss reduction='mean_with_sample_weight'"
            )
        reductions = {one.reduction for one in losses}
        if not reductions <= {*MEAN, WEIGHTED_MEAN}:
            raise UsageError(
                f"a loss with reduction={next(iter(reductions - {*MEAN, WEIGHTED_MEAN}))!r} has no mean over the samples of all "
                "workers; leave reduction out"
            )
        by_weights = WEIGHTED_MEAN in reductions and weights is not None
        if len(losses) > 1 and (masks or by_weights):
            raise UsageError(
                "several losses of which one leaves samples out (a mask, or reduction='mean_with_sample_weight') have no common "
                "mean over all workers, as they divide by different numbers; use one loss, or the default reduction without masks"
            )
        if masks or by_weights:
            own = ops.cast(tree.flatten(weights)[0], dtype) if by_weights else None
            return ops.sum(apply_mask(own, masks[0] if masks else None, dtype, WEIGHTED_MEAN))
        return ops.cast(ops.shape(tree.flatten(inputs)[0])[0], dtype)


def _at(path: Sequence[Any], outputs: Any) -> Any:
    """Returns the output that a loss belongs to; a single output has no path."""
    from keras import tree

    for place in path:
        outputs = outputs[place]
    return tree.flatten(outputs)[0]


def metric_starts(metrics: Sequence[Any]) -> list[npt.NDArray[Any]]:
    """Local: returns where each variable of some metrics begins: what `reset_state` of the metric assigns to it before an epoch."""
    from keras import StatelessScope, ops

    found = list[npt.NDArray[Any]]()
    for metric in metrics:
        with StatelessScope() as scope:
            metric.reset_state()
        for variable in metric.variables:
            value = scope.get_current_value(variable)
            found.append(np.asarray(ops.convert_to_numpy(variable.value if value is None else value)))
    return found


def unique(variables: Sequence[Any]) -> list[Any]:
    """Pure: returns the variables without repetitions; layers may share them."""
    return list({id(variable): variable for variable in variables}.values())


def layers_of(model: Any) -> Iterator[Any]:
    """Pure: yields the model and all layers inside it."""
    found: Iterator[Any] = model._flatten_layers(include_self=True, recursive=True)
    return found


def stable_names(model: Any, weights: Sequence[Any]) -> list[str]:
    """Pure: returns paths of variables in which the numbers that Keras gives to layers without a name count from the first layer
    of this model; Keras counts from the first of the process."""
    automatic = {layer.name: base for layer in layers_of(model) if (base := _automatic_name(layer)) is not None}
    renamed: dict[str, str] = {}
    counts: dict[str, int] = {}
    found = list[str]()
    for variable in weights:
        parts = []
        for part in variable.path.split("/"):
            base = automatic.get(part)
            if base is not None and part not in renamed:
                number = counts.get(base, 0)
                counts[base] = number + 1
                renamed[part] = f"{base}_{number}" if number else base
            parts.append(renamed.get(part, part))
        name = "/".join(parts).replace(".", "_")
        repeats = sum(name == other or other.startswith(f"{name}#") for other in found)
        found.append(f"{name}#{repeats}" if repeats else name)
    return found


def _automatic_name(layer: Any) -> str | None:
    """Returns the name without its number if Keras has named the layer; None if the user did."""
    from keras.src.utils.naming import to_snake_case

    base = to_snake_case(type(layer).__name__)
    return base if re.fullmatch(rf"{re.escape(base)}(_\d+)?", layer.name) else None
