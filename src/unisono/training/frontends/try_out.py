"""Runs two samples through model, loss and metrics, so that mistakes are reported before work starts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unisono.data.checks import targets_in_memory
from unisono.data.data_differences import PART_NAMES
from unisono.data.source import Source
from unisono.data.splits import Splits
from unisono.data.target_checks import check_targets
from unisono.errors import UsageError
from unisono.launch.excepthook import user_code_line
from unisono.metrics import Metric
from unisono.metrics.base import GatheredMetric
from unisono.metrics.counts import ClassQuotient
from unisono.metrics.custom_metric import CustomMean
from unisono.metrics.fit import refuse_batch_means, refuse_targets, refuse_unfit
from unisono.model.base import Evaluated
from unisono.model.losses.base import Reading
from unisono.model.losses.custom_loss import CustomLoss
from unisono.model.torch.adapter import TorchAdapter
from unisono.model.torch.body import call
from unisono.task.averages import UNNAMED
from unisono.task.task import Task
from unisono.training import determinism


def try_out(model: nn.Module, splits: Splits, task: Task, device: torch.device) -> None:
    """Local, blocking: runs two samples through the model and checks the outputs against the loss, so that mistakes are reported
    before work starts. It also gives lazy modules their shapes."""
    outputs = first_outputs(model, splits.train, device, "the training data")
    if task.loss is not None and isinstance(outputs, Tensor):
        ignored = task.loss_options.get("ignore_label")
        check_targets(splits.parts(), task.loss, outputs.shape, () if ignored is None else (ignored,))


def try_parts(adapter: TorchAdapter, splits: Splits, task: Task, metrics: Sequence[Metric], reading: Reading) -> dict[str, str]:
    """Local, blocking: runs two samples of each part of the data through model, loss and metrics. A loss or step of the task's own
    may need outputs that the model gives only in training, so with one the training data are not tried."""
    tries_train = isinstance(task.loss, str) and task.step is None
    parts = {name: part for name, part in splits.parts().items() if name != "train" or tries_train}

    loss = getattr(adapter.body, "loss", None)

    def evaluate(source: Source, what: str) -> Evaluated:
        first_outputs(adapter.model, source, adapter.device, what)
        with _errors_name(f"the first samples of {what}"):
            seen = adapter.evaluate(source.read(np.arange(min(2, len(source)))))
            if isinstance(loss, CustomLoss):
                refuse_batch_means(loss, seen.outputs, seen.targets, seen.weights)
        return seen

    if not tries_train and task.step is None:
        what = f"the {PART_NAMES['train']} data"
        outputs = first_outputs(adapter.model, splits.train, adapter.device, what)
        batch = first_samples(splits.train, adapter.model, adapter.device)
        _, targets, weights, *_ = (*(batch if isinstance(batch, tuple) else (batch,)), None, None)
        if isinstance(loss, CustomLoss):
            with _errors_name(f"the first samples of {what}"):
                refuse_batch_means(loss, outputs, targets, weights)
        refuse_unfit(metrics, reading)
        _refuse_targets(metrics, reading, outputs, targets, splits.train, what)
    return try_metrics(metrics, reading, parts, evaluate)


def try_metrics(
    metrics: Sequence[Metric], reading: Reading, parts: Mapping[str, Source], evaluate: Callable[[Source, str], Evaluated]
) -> dict[str, str]:
    """Local, blocking: computes metrics of the first samples of each part, which `evaluate` gives; refuses those that do not fit
    the loss, or the targets (all that lie in memory). Returns how metrics average whose names do not say it."""
    averages = {}
    for name, source in parts.items():
        what = f"the {PART_NAMES[name]} data"
        seen = evaluate(source, what)
        refuse_unfit(metrics, reading)
        for metric in metrics:
            with _errors_name(f"the first samples of {what}"):
                look = metric.rows if isinstance(metric, GatheredMetric) else metric.sums
                sums = look(seen.outputs, seen.targets, seen.weights)
                if isinstance(metric, CustomMean):
                    refuse_batch_means(metric, seen.outputs, seen.targets, seen.weights)
            if isinstance(metric, ClassQuotient) and metric.name in UNNAMED:
                averages[metric.name] = metric.average_of(sums)
        _refuse_targets(metrics, reading, seen.outputs, seen.targets, source, what)
    return averages


def _refuse_targets(
    metrics: Sequence[Metric], reading: Reading, outputs: Any, first_targets: Any, source: Source, what: str
) -> None:
    """Refuses targets that do not fit the metrics: all of them where they lie in memory, else those of the first samples."""
    targets = targets_in_memory(source) if metrics else None
    if targets is None and isinstance(first_targets, Tensor):
        targets = first_targets.to("cpu", torch.float64).numpy()
    if targets is not None:
        with _errors_name(what):
            refuse_targets(metrics, reading, outputs, targets)


def first_outputs(model: nn.Module, source: Source, device: torch.device, what: str) -> Any:
    """Local, blocking: the model's outputs for the first two samples of `what`; refuses samples that it cannot compute."""
    batch = first_samples(source, model, device)
    inputs = batch[0] if isinstance(batch, tuple) else batch
    with without_learning(model):
        try:
            with determinism.explain_errors():
                return call(model, inputs)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            layer = _layer_of(error, model)
            raise UsageError(
                f"the model cannot take the first samples of {what}, each {_describe_sample(inputs)}: "
                f"{'' if layer is None else f'{_name_of(layer, model)} raises '}{error_summary(error)}"
                f"{user_code_line(error.__traceback__, Path(torch.__file__).parent)}; {_remedy(inputs, layer)}"
            ) from error


def first_samples(source: Source, model: nn.Module, device: torch.device) -> Any:
    """Local, blocking: the first two samples as tensors of the model's type."""
    return samples_at(range(min(2, len(source))), source, model, device)


def samples_at(rows: Sequence[int], source: Source, model: nn.Module, device: torch.device) -> Any:
    """Local, blocking: these samples as tensors of the model's type."""
    dtype = next((one.dtype for one in model.parameters()), torch.float32)
    return _to_tensors(source.read(np.array(rows)), dtype, device)


@contextmanager
def without_learning(model: nn.Module) -> Iterator[None]:
    """Context manager, local: evaluation mode without gradients; afterwards every module is in the mode in which it was."""
    learning = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in learning:
            module.training = True


@contextmanager
def _errors_name(where: str) -> Iterator[None]:
    """In this context a refusal also names the data in which it was seen."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{error} ({where})") from error


def _to_tensors(tree: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """Returns the tree with its leaves as tensors on `device`, floating ones in `dtype`."""
    if isinstance(tree, tuple):
        return tuple(_to_tensors(part, dtype, device) for part in tree)
    if isinstance(tree, dict):
        return {name: _to_tensors(part, dtype, device) for name, part in tree.items()}
    tensor = torch.as_tensor(tree)
    return tensor.to(device, dtype) if tensor.is_floating_point() else tensor.to(device)


def _describe_sample(batch: Any) -> str:
    """Returns the types and shapes of one sample as text: float32 of shape (8, 8)."""
    if isinstance(batch, tuple):
        return ", ".join(_describe_sample(part) for part in batch)
    if isinstance(batch, dict):
        return ", ".join(f"{name}: {_describe_sample(part)}" for name, part in batch.items())
    return f"{str(batch.dtype).removeprefix('torch.')} of shape {tuple(batch.shape[1:])}"


def _layer_of(error: Exception, model: nn.Module) -> nn.Module | None:
    """Pure: the innermost module of the model in which an error was raised; None where its traceback does not tell."""
    layers, trace = set(model.modules()), error.__traceback__
    found: nn.Module | None = None
    while trace is not None:
        one = trace.tb_frame.f_locals.get("self")
        if isinstance(one, nn.Module) and one in layers:
            found = one
        trace = trace.tb_next
    return found


def _name_of(layer: nn.Module, model: nn.Module) -> str:
    """Returns a layer for messages: layer '0', Linear(in_features=64, out_features=10, bias=True)."""
    name = next(name for name, one in model.named_modules() if one is layer)
    what = f"{type(layer).__name__}({' '.join(layer.extra_repr().split())})"
    return f"layer {name!r}, {what}," if name else what


def _remedy(inputs: Any, layer: nn.Module | None) -> str:
    """Returns what to do about samples that a layer cannot take: to flatten them, if it takes as many numbers."""
    shape = tuple(inputs.shape[1:]) if isinstance(inputs, Tensor) else ()
    if isinstance(layer, nn.Linear) and len(shape) > 1 and inputs[0].numel() == layer.in_features:
        return f"begin the model with nn.Flatten(), or give samples of shape ({layer.in_features},)"
    return "make the shapes and types of the data and of the model fit"


def error_summary(error: Exception) -> str:
    """The line of an error's message that says what is wrong: Keras says first where it was, and colours the rest."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in str(error).splitlines()]
    return next(
        (line for line in lines if line and not line.startswith("Exception encountered when calling")), type(error).__name__
    )
