"""What a task becomes on one rank, and what besides the task decides that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from unisono.algorithms.base import Algorithm, Settings
from unisono.algorithms.roles import LayoutOptions
from unisono.data.loader import Loader
from unisono.data.splits import Splits
from unisono.events import Spans
from unisono.metrics import Metric
from unisono.model.torch.adapter import TorchAdapter
from unisono.task.task import Task
from unisono.training.progress import Goals


@dataclass(frozen=True, kw_only=True)
class AssemblyOptions:
    """How a task is assembled, besides what the task itself says."""

    layout: LayoutOptions = field(default_factory=LayoutOptions)
    device: str = "auto"
    on_nan: str = "stop"
    replay: Sequence[str] | None = None
    """The recorded calls of a run that is to be repeated."""
    spans: Spans | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingParts:
    """Everything a trainer needs that a task decides."""

    task: Task
    """With what it leaves open filled in."""
    splits: Splits
    adapter: TorchAdapter
    algorithm: Algorithm
    loader: Loader
    metrics: Sequence[Metric]
    train_metrics: Sequence[Metric]
    """Those that are computed in every training step, in the order of their sums in the tail."""
    settings: Callable[[int], Settings]
    """Learning rates and so on, a function of the step."""
    goals: Goals
    comparable_metrics: Mapping[str, bool]
    """What epochs can be compared by -> whether more of it is better."""
