"""Two samples through everything, so that what does not fit is told before work starts."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from unisono.data.checks import PART_NAMES
from unisono.data.source import Source
from unisono.data.splits import Splits, check
from unisono.errors import UsageError
from unisono.excepthook import place_of
from unisono.model.base import TEST, VALIDATION
from unisono.model.lightning import LightningBody, evaluation_step, is_error, metric_name
from unisono.model.torch import TorchAdapter, call
from unisono.task import Task
from unisono.training import promise
from unisono.training.metrics import Metric
from unisono.training.metrics.base import GatheredMetric


def try_out(model: nn.Module, splits: Splits, task: Task, device: torch.device) -> None:
    """Local, blocking: two samples through the model, so that what does not fit is told before work starts. It also gives lazy
    modules their shapes."""
    outputs = first_outputs(model, splits.train, device, "the training data")
    if task.loss in ("cross_entropy", "nll", "focal") and isinstance(outputs, Tensor) and outputs.dim() >= 2:
        ignored = task.loss_options.get("ignore_label")
        check(splits, outputs.shape[1], () if ignored is None else (ignored,))


def try_parts(adapter: TorchAdapter, splits: Splits, task: Task, metrics: Sequence[Metric]) -> None:
    """Local, blocking: two samples of each part through model, loss and metrics. A loss of the task's own may need what the model
    gives only while it learns, so there the training data wait for the first step."""
    for name, source in splits.parts().items():
        what = f"the {PART_NAMES[name]} data"
        if name == "train" and not isinstance(task.loss, str):
            continue
        first_outputs(adapter.model, source, adapter.device, what)
        try:
            seen = adapter.evaluate(source.read(np.arange(min(2, len(source)))))
            for metric in metrics:
                look = metric.rows if isinstance(metric, GatheredMetric) else metric.sums
                look(seen.outputs, seen.targets, seen.weights)
        except UsageError as error:
            raise UsageError(f"{error} (the first samples of {what})") from error


def try_steps(body: LightningBody, model: nn.Module, splits: Splits, device: torch.device) -> dict[str, bool]:
    """Local, blocking: two samples through the validation of a LightningModule, as its Trainer would do before it starts. Gives the
    metrics that it has, each with whether more of it is better."""
    for stage, source in ((VALIDATION, splits.validation), (TEST, splits.test)):
        if source is not None and evaluation_step(model, stage) is None and not body.with_outputs:
            raise UsageError(
                f"there are {stage} data and {type(model).__name__} has no validation_step; write it, name metrics of the task, "
                f"or leave the {stage} data out of un.Splits"
            )
    if splits.validation is None:
        if any(is_lazy(parameter) for parameter in model.parameters()):
            with _trying(model):
                body(model, first(splits.train, model, device), 0)  # gives lazy modules their shapes
        return {}
    body.surroundings.sanity_checking = True
    with _trying(model), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # metrics say that two samples are few
        body.begin(VALIDATION)
        seen = body.evaluate(model, first(splits.validation, model, device))
        logged = body.end(VALIDATION)
    body.surroundings.sanity_checking = False
    found = {} if seen.loss_sum is None else {"val_loss": False}
    found |= {metric_name("val_", name): not is_error(name) for name in logged}
    if not found and not body.with_outputs:
        raise UsageError(f"validation_step of {type(model).__name__} returns no loss and logs nothing; do one of them")
    return found


def first_outputs(model: nn.Module, source: Source, device: torch.device, what: str) -> Any:
    """Local, blocking: what the model gives for two samples of `what`; refuses samples that it cannot take."""
    batch = first(source, model, device)
    inputs = batch[0] if isinstance(batch, tuple) else batch
    with _trying(model):
        try:
            with promise.explained():
                return call(model, inputs)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise UsageError(
                f"the model cannot take the first samples of {what} ({_shapes(inputs)}): {_said(error)}"
                f"{place_of(error.__traceback__, Path(torch.__file__).parent)}; "
                "make the shapes and types of the data and of the model fit"
            ) from error


def first(source: Source, model: nn.Module, device: torch.device) -> Any:
    """Local, blocking: the first two samples as tensors of the model's type."""
    dtype = next((one.dtype for one in model.parameters()), torch.float32)
    return _tensors(source.read(np.arange(min(2, len(source)))), dtype, device)


@contextmanager
def _trying(model: nn.Module) -> Iterator[None]:
    learning = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in learning:
            module.training = True


def _tensors(tree: Any, dtype: torch.dtype, device: torch.device) -> Any:
    if isinstance(tree, tuple):
        return tuple(_tensors(part, dtype, device) for part in tree)
    if isinstance(tree, dict):
        return {name: _tensors(part, dtype, device) for name, part in tree.items()}
    tensor = torch.as_tensor(tree)
    return tensor.to(device, dtype) if tensor.is_floating_point() else tensor.to(device)


def _shapes(tree: Any) -> str:
    if isinstance(tree, tuple):
        return ", ".join(_shapes(part) for part in tree)
    if isinstance(tree, dict):
        return ", ".join(f"{name}: {_shapes(part)}" for name, part in tree.items())
    return f"{tree.dtype} {tuple(tree.shape)}"


def _said(error: Exception) -> str:
    """The line of a message that says what is wrong: Keras says first where it was, and colours the rest."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in str(error).splitlines()]
    return next(
        (line for line in lines if line and not line.startswith("Exception encountered when calling")), type(error).__name__
    )
