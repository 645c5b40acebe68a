"""The task, which users write: the definition of one training. Holds functions and values, runs nothing, loads no framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, TypeVar

from unisono.errors import UsageError
from unisono.task.name_value import literal
from unisono.task.options import check, option

T = TypeVar("T")

EXPERIMENT = "the experiment"
PRECISIONS = ("float32", "bf16")


def setting(default: T, help: str, metavar: str = "", **facts: Any) -> T:
    """Declares a field of the task that can be changed where a training is started: by an option of its own if it has a metavar,
    and by --set."""
    facts = {"flag": "" if metavar else None, "read": literal, **facts}
    return option(default, help, metavar or None, group=EXPERIMENT, is_change=True, **facts)


@dataclass(frozen=True)
class Range:
    """Values of a model argument that tuning may try: `width: Annotated[int, un.Range(16, 256, log=True)] = 64`."""

    low: float
    high: float
    log: bool = False
    when: Mapping[str, Any] = field(default_factory=dict)
    """Other settings and the value, or list of values, that each must have so that this one means something."""

    def __post_init__(self) -> None:
        if not -inf < self.low < self.high < inf or (self.log and self.low <= 0):
            above = " above 0" if self.log else ""
            raise UsageError(f"a Range needs low < high{above}; received {self.low} and {self.high}")


@dataclass(frozen=True)
class Choice:
    """Values of a model argument that tuning may choose from: `act: Annotated[str, un.Choice("relu", "gelu")] = "relu"`."""

    values: tuple[Any, ...]
    when: Mapping[str, Any]
    """As for a `Range`."""

    def __init__(self, *values: Any, when: Mapping[str, Any] | None = None) -> None:
        if not values:
            raise UsageError("a Choice needs at least one value")
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "when", dict(when or {}))


@dataclass(frozen=True)
class Task:
    """One training: model, data and how to learn. Every value can be overridden on the command line."""

    model: Callable[..., Any]
    """Makes the model (a torch module); its arguments can be set with --set model.NAME=VALUE."""
    data: Callable[..., Any]
    """Makes `un.Splits`; its arguments can be set with --set data.NAME=VALUE."""
    loss: str | Callable[..., Any] | None = setting(
        None, "by name, or a function loss(outputs, targets) that gives one loss for each sample, or the pair (sum, weight)"
    )
    metrics: Sequence[str | Callable[..., Any]] = setting((), "names of metrics, or functions of outputs and targets")
    optimizer: str | Callable[..., Any] | Mapping[str, Any] | None = setting(
        None,
        "by name with `optimizer_options`, or a function of the parameters (and, if it takes it, `lr`); none: sgd, or that of a "
        "LightningModule",
    )
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    """E.g. {"momentum": 0.9}; --set optimizer.momentum=0.9"""
    lr: float | None = setting(
        None, "learning rate; none: 0.01, or what a LightningModule or the optimizer's function sets itself", "LR", above=0
    )
    schedule: str | Callable[..., Any] | None = setting(
        None,
        "of the learning rate: by name (cosine, ...), a function step -> factor of the learning rate, or a function optimizer -> "
        "torch scheduler",
    )
    schedule_options: Mapping[str, Any] = field(default_factory=dict)
    global_batch: int = setting(128, "samples of one step over all workers together", "B", least=1)
    epochs: int = setting(1, "how often every training sample is used", "E", least=1)
    loss_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of a loss by name: class_weights, ignore_label, label_smoothing."""
    clip_norm: float | None = setting(None, "largest global norm of the gradient", above=0)
    precision: str = setting("float32", f"of the computation: {' or '.join(PRECISIONS)}", "P", choices=PRECISIONS)
    accumulate: int = setting(
        1, "micro-batches in which each worker computes its part of a batch, to save memory; the mathematics stays", "K", least=1
    )
    shards: int | None = setting(
        None, "cut every batch into S fixed parts: any number of workers up to S then gives the same bits", "S", least=1
    )
    augment: Callable[..., Any] | None = None
    """`augment(batch, random)` of every training batch; `random` gives each sample its own numbers, whoever computes it."""
    step: Callable[..., Any] | None = None
    """The task's own training step, for several losses or optimisers (a GAN)."""
    monitor: str | None = setting(
        None,
        "the metric that decides which epoch is best, e.g. val_f1 (default: the first metric of the validation, or its loss)",
        "METRIC",
        flag="--best",
    )
    target: float | None = setting(None, "stop when the metric that decides is this good; the summary has the time it took", "T")
    patience: int | None = setting(None, "stop when the metric that decides has not improved for P epochs", "P", least=1)
    seed: int = setting(0, "random seed of the weights, of the order of the samples and of every other draw", "S")
    name: str = setting("", "of the task, for messages and the run directory (default: the name of its file)")
    space: Mapping[str, Range | Choice] = field(default_factory=dict)
    """What tuning may try besides annotated arguments, as --set calls it: {"lr": un.Range(0.001, 1, log=True),
    "optimizer.momentum": un.Range(0, 0.99, when={"optimizer": "sgd"}), "algorithm": un.Choice("allreduce", "local_sgd")}."""

    def __post_init__(self) -> None:
        for name in ("model", "data"):
            if not callable(getattr(self, name)):
                raise UsageError(f"{name} of the task must be a function that makes it; received {getattr(self, name)!r}")
        for name in ("augment", "step"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise UsageError(f"{name} of the task must be a function; received {getattr(self, name)!r}")
        for name in ("optimizer_options", "schedule_options", "loss_options"):
            if not isinstance(getattr(self, name), Mapping):
                raise UsageError(f"{name} of the task must be a dict of names and values; received {getattr(self, name)!r}")
        wrong = (
            [name for name, one in self.space.items() if not isinstance(one, (Range, Choice))]
            if isinstance(self.space, Mapping)
            else [""]
        )
        if wrong:
            raise UsageError(f"space of the task must be a dict of names with un.Range or un.Choice; received {self.space!r}")
        if isinstance(self.metrics, str) or callable(self.metrics):
            object.__setattr__(self, "metrics", (self.metrics,))
        if not isinstance(self.metrics, (tuple, list)):
            raise UsageError(f"metrics of the task must be a tuple of names or functions; received {self.metrics!r}")
        check(self, lambda one: f"{one.field} of the task")
