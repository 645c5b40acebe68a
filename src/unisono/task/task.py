"""The task, which users write: the definition of one training. Holds functions and values, runs nothing, loads no framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, TypeVar

from unisono.errors import UsageError
from unisono.task.name_value import literal
from unisono.task.options import DOC, check, lists_fields, option

T = TypeVar("T")

EXPERIMENT = "the experiment"
PRECISIONS = ("float32", "tf32", "bf16")
COMPILE = ("auto", "on", "off")
FINAL, BEST = "final", "best"
"""Weights that a training leaves: those of its end, and those of its best epoch."""


def setting(default: T, help: str, metavar: str = "", **facts: Any) -> T:
    """Declares a field of the task that can be changed where a training is started: by an option of its own if it has a metavar,
    and by --set."""
    facts = {"flag": "" if metavar else None, "read": literal, **facts}
    return option(default, help, metavar or None, group=EXPERIMENT, is_change=True, **facts)


@dataclass(frozen=True)
class Range:
    """Numbers between two ends that `unisono tune` may try for a setting.

    Write it as the annotation of an argument of the task's `model` or `data` function, or into the task's `space`. Both
    ends can be tried. Whole numbers are drawn for an argument that is an int, and for one without a type if both ends and
    the default are whole; otherwise real numbers. Outside a search the default of the argument counts; a Range does not
    limit what --set may give.

    `low` must be below `high`, and above 0 with `log`; both must be finite. For a single value use `un.Choice`.

    Example:
        from typing import Annotated
        from torch import nn
        import unisono as un

        def model(width: Annotated[int, un.Range(16, 256, log=True)] = 64) -> nn.Module:
            return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    Args:
        low: The smallest value.
        high: The largest value.
        log: True draws powers evenly, so that 0.001 to 0.01 is tried as often as 0.1 to 1; for learning rates, widths, and
            the like.
        when: Other settings and the value, or list of values, that each must have for this one to be tried, for example
            {"optimizer": "sgd"}.
    """

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
    """Values that `unisono tune` may choose from for a setting.

    Write it as the annotation of an argument of the task's `model` or `data` function, or into the task's `space`. Values
    are texts, numbers, True, False or None, so that the study can be written to a file. In an annotation it also limits
    what --set may give.

    Example:
        from typing import Annotated
        from torch import nn
        import unisono as un

        def model(act: Annotated[str, un.Choice("ReLU", "GELU")] = "ReLU") -> nn.Module:
            return nn.Sequential(nn.Linear(64, 32), getattr(nn, act)(), nn.Linear(32, 10))

        batch = un.Choice(32, 64, 128, when={"algorithm": "allreduce"})

    Args:
        values: The values, at least one: `un.Choice("relu", "gelu")`.
        when: Other settings and the value, or list of values, that each must have for this one to be tried.
    """

    values: tuple[Any, ...]
    when: Mapping[str, Any]
    """As for a `Range`."""

    def __init__(self, *values: Any, when: Mapping[str, Any] | None = None) -> None:
        if not values:
            raise UsageError("a Choice needs at least one value")
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "when", dict(when or {}))


@lists_fields
@dataclass(frozen=True)
class Task:
    """The definition of one training: model, data, and how to learn.

    A task file assigns one to the name `task`; `unisono train`, `tune`, `evaluate` and `apply` read it, and `un.train`
    takes it directly. It holds functions and values and runs nothing. Every value can be changed when a training is
    started, without an edit: `--set model.width=128`, `--lr 0.05`. Names that do not exist are refused with the nearest
    ones.

    `model` and `data` are functions, not objects, so that every worker makes its own and the seed decides the first
    weights. Their arguments need defaults unless they are given with --set. A model without a `loss` must be a
    LightningModule or a compiled Keras model, which bring their own, or the task needs a `step`. Values out of range are
    refused when the task is made; names of losses, metrics and optimisers when the training starts.

    Example:
        from typing import Annotated
        from torch import nn
        import unisono as un

        def model(width: Annotated[int, un.Range(16, 256, log=True)] = 64) -> nn.Module:
            return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

        def data() -> un.Splits:
            return un.split(un.digits(), validation=0.1, test=0.2, how="stratified")

        task = un.Task(
            model=model,
            data=data,
            loss="cross_entropy",
            metrics=("accuracy",),
            optimizer="sgd",
            optimizer_options={"momentum": 0.9},
            lr=0.1,
            global_batch=64,
            epochs=10,
        )
    """

    model: Callable[..., Any] = field(
        metadata={DOC: "a function that returns the model (torch, Lightning or Keras); --set model.NAME=VALUE sets its arguments"}
    )
    data: Callable[..., Any] = field(
        metadata={DOC: "a function that returns the `un.Splits`; --set data.NAME=VALUE sets its arguments"}
    )
    loss: str | Callable[..., Any] | None = setting(
        None,
        "name of a loss, or a function loss(outputs, targets) that returns one loss for each sample, or the pair (sum, weight)",
    )
    metrics: Sequence[str | Callable[..., Any]] = setting((), "names of metrics, or functions of outputs and targets")
    optimizer: str | Callable[..., Any] | Mapping[str, Any] | None = setting(
        None,
        "name of an optimizer, with its `optimizer_options`, or a function of the parameters (and of `lr`, if it takes that); "
        "default: sgd, or the optimizer of a LightningModule",
    )
    optimizer_options: Mapping[str, Any] = field(
        default_factory=dict, metadata={DOC: 'options of an optimizer by name, e.g. {"momentum": 0.9}; --set optimizer.NAME=VALUE'}
    )
    lr: float | None = setting(
        None, "learning rate (default 0.01, or what a LightningModule or the optimizer's function sets)", "LR", above=0
    )
    schedule: str | Callable[..., Any] | None = setting(
        None,
        "schedule of the learning rate: a name (cosine, ...), a function step -> factor, or a function optimizer -> "
        "torch scheduler",
    )
    schedule_options: Mapping[str, Any] = field(
        default_factory=dict, metadata={DOC: "options of a schedule by name; --set schedule.NAME=VALUE"}
    )
    global_batch: int = setting(128, "samples in one step, over all workers together", "B", least=1)
    epochs: int = setting(1, "number of passes over the training data", "E", least=1)
    loss_options: Mapping[str, Any] = field(
        default_factory=dict,
        metadata={DOC: "options of a loss by name: class_weights, ignore_label, label_smoothing, ...; --set loss.NAME=VALUE"},
    )
    clip_norm: float | None = setting(None, "clip the gradient to this global norm", above=0)
    precision: str = setting("float32", f"precision of the computation: {' or '.join(PRECISIONS)}", "P", choices=PRECISIONS)
    compile: str = setting(
        "auto",
        "compile model and loss, which makes steps faster and takes some time first: on, off, or auto: on a GPU where it pays",
        "C",
        choices=COMPILE,
    )
    accumulate: int = setting(
        1,
        "compute each worker's part of a batch in K micro-batches, to save memory; the result is the same up to rounding, but not "
        "with batch-norm, which then sees micro-batches, and dropout draws other masks",
        "K",
        least=1,
    )
    shards: int | None = setting(
        None, "cut every batch into S fixed parts, so that any number of workers up to S gives the same bits", "S", least=1
    )
    augment: Callable[..., Any] | None = field(
        default=None,
        metadata={
            DOC: "a function augment(batch, random) that changes every training batch, or one of `un.augment`; `random` is an "
            "`un.SampleRandom`"
        },
    )
    step: Callable[..., Any] | None = field(
        default=None,
        metadata={
            DOC: "the task's own training step, for several losses or optimizers (a GAN): step(self, batch) with an `un.OwnStep`"
        },
    )
    monitor: str | None = setting(
        None,
        "the metric that decides which epoch is best, e.g. val_f1; M:max or M:min gives the direction where the "
        "name does not say it (default: the first metric of the validation, or its loss)",
        "METRIC",
        flag="--best",
    )
    target: float | None = setting(None, "stop when the metric that decides reaches T; the summary has the time it took", "T")
    patience: int | None = setting(None, "stop when the metric that decides has not improved for P epochs", "P", least=1)
    weights: str | None = setting(
        None,
        "weights whose results count, for test data, apply, evaluate, compare and tune: of the best epoch (best) or of the last "
        "(final) (default: best if best, target or patience is set, else final)",
        "WEIGHTS",
        choices=(FINAL, BEST),
    )
    seed: int = setting(0, "random seed of the weights, the order of the samples and every other random draw", "S")
    data_seed: int | None = setting(
        0,
        "seed of the random numbers that `data` draws from Python's, NumPy's and torch's generators; it stays the same when `seed` "
        "changes, so that runs with other seeds are compared on the same samples; None leaves the generators as they are",
    )
    name: str = setting("", "name of the task in messages and in the run directory (default: the name of its file)")
    space: Mapping[str, Range | Choice] = field(
        default_factory=dict,
        metadata={
            DOC: "search space of `unisono tune` besides annotated arguments, with the names of --set, e.g. "
            '{"lr": un.Range(0.001, 1, log=True), "algorithm": un.Choice("allreduce", "local_sgd")}'
        },
    )

    def __post_init__(self) -> None:
        for name in ("model", "data"):
            if not callable(getattr(self, name)):
                raise UsageError(f"{name} of the task must be a function that returns it; received {getattr(self, name)!r}")
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
