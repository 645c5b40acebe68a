"""The parts of one rank's training, and the options beside the task that decide them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from unisono.algorithms.base import Algorithm, Settings
from unisono.algorithms.roles import LayoutOptions
from unisono.data.loader import Loader
from unisono.data.splits import Splits
from unisono.events import Spans
from unisono.metrics import Metric
from unisono.model.losses import Reading
from unisono.model.torch.adapter import TorchAdapter
from unisono.task.averages import OF_OUTPUTS, Averages
from unisono.task.task import Task
from unisono.training.early_stopping import Goals
from unisono.training.parts_on_device import PartsOnDevice


class EarlierAttempt(NamedTuple):
    """What a run directory says of the run that is resumed."""

    resumes: bool = False
    """Whether a state will be loaded, so that initial weights are not needed."""
    settings: Mapping[str, Any] = MappingProxyType({})
    """Settings whose default was another then."""
    averages: Averages = OF_OUTPUTS
    """How its metrics average."""
    compiled: str | None = None
    """Whether its model was compiled, "on" or "off"."""


@dataclass(frozen=True, kw_only=True)
class AssemblyOptions:
    """Options with which `assemble` makes a training, besides the task itself."""

    layout: LayoutOptions = field(default_factory=LayoutOptions)
    device: str = "auto"
    on_nan: str = "stop"
    replay: Sequence[str] | None = None
    """The recorded calls of a run that is to be repeated."""
    spans: Spans | None = None
    averages: Averages = field(default_factory=dict)
    """The averages of a run or study that began earlier."""
    capture: str = "auto"
    """Whether steps on a GPU are recorded and repeated: auto or off."""
    compiled: str | None = None
    """Whether the model was compiled in the run that is resumed: on or off; None where there is none."""
    resident: str = "auto"
    """Whether data that fit are kept on a GPU: auto or off."""
    init_from: Path | None = None
    """The file of the weights with which the training begins, in place of random ones."""


@dataclass(frozen=True, kw_only=True)
class TrainingParts:
    """The parts of a training on one rank that a trainer needs: data, model, algorithm, goals."""

    task: Task
    """The task, with defaults for what it leaves open."""
    splits: Splits
    adapter: TorchAdapter
    algorithm: Algorithm
    loader: Loader
    metrics: Sequence[Metric]
    train_metrics: Sequence[Metric]
    """The metrics that are computed in every training step, in the order of their sums in the tail."""
    settings: Callable[[int], Settings]
    """Learning rates and so on, a function of the step."""
    goals: Goals
    comparable_metrics: Mapping[str, bool | None]
    """Quantities by which epochs can be compared -> whether higher is better; None where that is not known."""
    reading: Reading = field(default_factory=Reading)
    """How the loss reads outputs and targets, and so the metrics."""
    averages: Averages = field(default_factory=dict)
    """How the metrics average whose names do not say it."""
    num_learning: int = 1
    """Number of processes, or virtual workers, that learn from samples of their own."""
    resident: PartsOnDevice = field(default_factory=PartsOnDevice)
    """The data that lie on the device."""
    notes: Sequence[str] = ()
    """What a user should know about how it is computed."""
    schedule_note: str = ""
    """How often the torch scheduler makes a step; empty where there is none."""
