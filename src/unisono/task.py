"""What a user writes: the definition of one training. Holds functions and values, runs nothing, loads no framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from numbers import Integral, Real
from typing import Any

from unisono.errors import UsageError

PRECISIONS = ("float32", "bf16")


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
    loss: str | Callable[..., Any] | None = None
    """By name, or `loss(outputs, targets)` that gives one loss for each sample, or the pair (sum, weight)."""
    metrics: Sequence[str | Callable[..., Any]] = ()
    optimizer: str | Callable[..., Any] | Mapping[str, Any] | None = None
    """By name with `optimizer_options`, or a function of the parameters (and, if it takes it, `lr`). None is "sgd", or that of a
    LightningModule."""
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    """E.g. {"momentum": 0.9}; --set optimizer.momentum=0.9"""
    lr: float | None = None
    """None is 0.01, or what a LightningModule or the optimizer's function sets itself."""
    schedule: str | Callable[..., Any] | None = None
    """By name ("cosine", ...), a function step -> factor of the learning rate, or a function optimiser -> torch scheduler."""
    schedule_options: Mapping[str, Any] = field(default_factory=dict)
    global_batch: int = 128
    """Samples in one step over all workers together."""
    epochs: int = 1
    loss_options: Mapping[str, Any] = field(default_factory=dict)
    """Of a loss by name: class_weights, ignore_label, label_smoothing."""
    clip_norm: float | None = None
    """Largest global norm of the gradient."""
    precision: str = "float32"
    accumulate: int = 1
    """Parts into which each worker cuts its share of a batch to save memory; the mathematics stays."""
    shards: int | None = None
    """Parts of fixed content into which every batch is cut, whatever the number of workers: the result is then the same, bit for
    bit, with any number of them up to this one."""
    augment: Callable[..., Any] | None = None
    """`augment(batch, random)` of every training batch; `random` gives each sample its own numbers, whoever computes it."""
    step: Callable[..., Any] | None = None
    """The task's own training step, for several losses or optimisers (a GAN)."""
    monitor: str | None = None
    """The metric that says which epoch is best; by default the first metric of the validation, or its loss."""
    target: float | None = None
    """Stop when the monitored metric is at least this good; the time it took is in the summary."""
    patience: int | None = None
    """Stop when the monitored metric has not improved for so many epochs."""
    seed: int = 0
    name: str = ""
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
        for name in ("name", "monitor"):
            if not isinstance(getattr(self, name), str) and (name == "name" or self.monitor is not None):
                raise UsageError(f"{name} of the task must be a text; received {getattr(self, name)!r}")
        if self.precision not in PRECISIONS:
            raise UsageError(f"precision must be one of {', '.join(PRECISIONS)}; received {self.precision!r}")
        self._check_numbers()

    def _check_numbers(self) -> None:
        """NumPy's numbers become plain ones; a truth value is none."""
        for name in ("global_batch", "epochs", "accumulate", "patience", "shards", "seed"):
            value, least = getattr(self, name), None if name == "seed" else 1
            if name in ("patience", "shards") and value is None:
                continue
            is_whole = isinstance(value, Integral) and not isinstance(value, bool)
            if not is_whole or (least is not None and value < least):
                at_least = "" if least is None else f" of at least {least}"
                raise UsageError(f"{name} of the task must be a whole number{at_least}; received {value!r}")
            object.__setattr__(self, name, int(value))
        for name in ("lr", "clip_norm", "target"):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, Real) or not isfinite(value):
                raise UsageError(f"{name} of the task must be a finite number; received {value!r}")
            if name != "target" and value <= 0:
                raise UsageError(f"{name} of the task must be above 0; received {value}")
            object.__setattr__(self, name, float(value))
