"""Kinds of predictions from the outputs of one or several models: labels, probabilities, one score, or the outputs themselves.

probabilities = mean over the models of softmax(outputs)        or sigmoid, as the loss of the task reads them
label         = the class with the largest probability          or each label whose probability is above 1/2
scores        = the probability of the second of two classes    or of the only output
raw           = mean over the models of the outputs
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from unisono.errors import UsageError, unknown_name
from unisono.predict.finished_run import KINDS
from unisono.task.task import Task


@dataclass(frozen=True)
class Probabilities:
    """The way in which a model's outputs become probabilities."""

    of: Callable[[Tensor], Tensor]
    are_exclusive: bool
    """One of the classes holds (axis 1), else each output stands for itself."""


def _softmax(outputs: Tensor) -> Tensor:
    """Returns the probabilities of exclusive classes."""
    return torch.softmax(outputs, dim=1)


NO_LABEL = -1
"""In place of the label where the probabilities are NaN."""
EXCLUSIVE, LOGARITHMS, SEPARATE = Probabilities(_softmax, True), Probabilities(torch.exp, True), Probabilities(torch.sigmoid, False)
BY_LOSS: Mapping[str, Probabilities] = MappingProxyType(
    {"cross_entropy": EXCLUSIVE, "focal": EXCLUSIVE, "nll": LOGARITHMS, "bce": SEPARATE}
)
BY_MODULE: Mapping[type, Probabilities] = MappingProxyType(
    {nn.CrossEntropyLoss: EXCLUSIVE, nn.NLLLoss: LOGARITHMS, nn.BCEWithLogitsLoss: SEPARATE}
)


def probabilities_of(task: Task) -> Probabilities | None:
    """Pure: how the loss of the task reads outputs as probabilities; None for a loss that does not."""
    return BY_LOSS.get(task.loss) if isinstance(task.loss, str) else BY_MODULE.get(type(task.loss))


@dataclass(frozen=True)
class Kind:
    """Computes what is written from the outputs of the models for one batch. Pure."""

    name: str
    reading: Probabilities | None

    def __call__(self, outputs: Sequence[Tensor]) -> Any:
        """Computes the predictions as a NumPy array: whole numbers for labels, else float32."""
        # In float64 the order of outputs survives, so that a label is the one that an evaluation decides for.
        wide = [one.detach().to("cpu", torch.float64) for one in outputs]
        if self.reading is None or self.name == "raw":
            return torch.stack(wide).mean(0).float().numpy()
        shares = torch.stack([self.reading.of(one) for one in wide]).mean(0)
        if self.name == "label":
            labels = shares.argmax(1) if self.reading.are_exclusive else (shares > 0.5).long()
            unknown = shares.isnan().any(1) if self.reading.are_exclusive else shares.isnan()
            return labels.masked_fill(unknown, NO_LABEL).numpy()
        if self.name == "scores":
            shares = shares[:, 1] if self.reading.are_exclusive else shares.reshape(len(shares))
        return shares.float().numpy()

    def fields(self, shape: tuple[int, ...], classes: Sequence[str]) -> tuple[str, ...] | None:
        """The field names of one sample's predictions, whose outputs have this shape; None where they are no row."""
        width = shape[0] if len(shape) == 1 else 1
        if len(shape) > 1:
            return None
        if self.name == "scores":
            return ("score",)
        if self.name == "label" and self.reading is not None and self.reading.are_exclusive:
            return ("label",)
        if width == 1:
            return ({"label": "label", "probabilities": "probability", "raw": "output"}[self.name],)
        if self.name != "raw" and len(classes) == width:
            return tuple(classes)
        letter = {"label": "label_", "probabilities": "p", "raw": "output_"}[self.name]
        return tuple(f"{letter}{number}" for number in range(width))


def make_kind(name: str | None, tasks: Sequence[Task], first: Sequence[Any]) -> Kind:
    """Pure: the requested kind, or by default labels where the loss has them; refuses what these models cannot give. `first` are
    their outputs for the first samples."""
    readings = [probabilities_of(task) for task in tasks]
    reading = readings[0]
    name = name or ("label" if reading is not None else "raw")
    if name not in KINDS:
        raise unknown_name("kind of predictions", name, KINDS, "(--kind)")
    for outputs in first:
        if not isinstance(outputs, Tensor):
            raise UsageError(
                f"the model returns {_describe_shape(outputs)}, but unisono apply writes one array; return one in evaluation mode "
                "(where self.training is False)"
            )
    if len({tuple(outputs.shape[1:]) for outputs in first}) > 1:
        shapes = ", ".join(str(tuple(outputs.shape[1:])) for outputs in first)
        raise UsageError(
            f"these runs cannot be averaged, as their outputs have different shapes for a sample: {shapes}; apply each alone"
        )
    if name == "raw":
        return Kind(name, reading)
    if reading is None or any(other is not reading for other in readings):
        losses = ", ".join(dict.fromkeys(_describe_loss(task) for task in tasks))
        fact = (
            f"how outputs become probabilities is not known for {losses}"
            if all(one is None for one in readings)
            else f"the runs do not all turn outputs into probabilities in the same way ({losses})"
        )
        raise UsageError(f"--kind {name} needs probabilities, but {fact}; use --kind raw")
    shape = tuple(first[0].shape[1:])
    if name == "scores" and (shape != (2,) if reading.are_exclusive else shape not in ((), (1,))):
        raise UsageError(f"scores are for two classes or one output; these samples give {shape}: use --kind probabilities")
    return Kind(name, reading)


def _describe_loss(task: Task) -> str:
    """Returns in words which loss a task has."""
    if task.loss is None:
        return "the loss of the model itself"
    return f"loss {task.loss!r}" if isinstance(task.loss, str) else "a loss function of the task"


def _describe_shape(outputs: Any) -> str:
    """Returns in words what a model returned that is not one tensor."""
    return f"{len(outputs)} outputs ({type(outputs).__name__})" if hasattr(outputs, "__len__") else f"a {type(outputs).__name__}"
