"""The loop: epochs of steps, an evaluation after each, and when to stop. It alone owns the step number and the learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from time import perf_counter, perf_counter_ns
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unisono.algorithms.base import Algorithm, Settings, StepInfo
from unisono.comm.base import Communicator
from unisono.data.loader import Loader, Portion
from unisono.data.source import Source
from unisono.events import EpochDone, Observer, Spans, StepDone
from unisono.model.base import TRAIN, ModelAdapter, StreamKey
from unisono.model.tail import StepStats
from unisono.training.evaluation import evaluate
from unisono.training.logged import means
from unisono.training.metrics import Metric
from unisono.training.not_finite import culprits


@dataclass(frozen=True)
class Goals:
    """When to stop, and which epoch is best."""

    num_epochs: int
    monitor: str | None
    """E.g. val_accuracy; None where there is nothing to choose by."""
    higher_is_better: bool = True
    target: float | None = None
    patience: int | None = None
    on_nan: str = "stop"

    def better(self, value: float, than: float | None) -> bool:
        """Pure."""
        if math.isnan(value):
            return False
        return than is None or (value > than if self.higher_is_better else value < than)

    def reached(self, value: float) -> bool:
        """Pure: whether the target is there."""
        return self.target is not None and (value >= self.target if self.higher_is_better else value <= self.target)


@dataclass
class Progress:
    """How far a training is. What a checkpoint must hold besides the state of the model."""

    step: int = 0
    epoch: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    """Each epoch as it was told to the observers."""
    best_epoch: int | None = None
    best_value: float | None = None
    num_skipped: int = 0
    """Updates that were left out because they were not finite."""
    train_s: float = 0.0
    """Spent in steps, evaluations not counted."""
    num_samples: int = 0
    data_wait_s: float = 0.0
    time_to_target_s: float | None = None
    reason: str = ""
    """Why it ended."""
    failure: str = ""
    """What went wrong, where the reason is a failure."""


@dataclass
class Trainer:
    """One training on one rank. All ranks make the same calls."""

    comm: Communicator
    adapter: ModelAdapter
    algorithm: Algorithm
    loader: Loader
    validation: Source | None
    metrics: Sequence[Metric]
    in_training: Sequence[Metric]
    """Those followed in every step, in the order of their sums in the tail."""
    settings: Callable[[int], Settings]
    """Learning rates and so on, a function of the step."""
    goals: Goals
    observers: Sequence[Observer]
    seed: int
    evaluation_batch: int
    told_to_stop: Callable[[], bool]
    keep_best: Callable[[], None]
    """Called, on every rank, when the replicas hold the best weights so far."""
    spans: Spans | None = None
    progress: Progress = field(default_factory=Progress)

    def run(self) -> Progress:
        """Collective, blocking: train to the end, whatever ends it."""
        self._began = perf_counter()
        self._taken: dict[int, _Taken] = {}
        self.algorithm.start()
        done = self.progress
        while not done.reason and done.epoch < self.goals.num_epochs:
            self._epoch()
        done.reason = done.reason or "finished"
        self.algorithm.settle()
        self.algorithm.finish()
        return done

    def _epoch(self) -> None:
        done = self.progress
        sums = _EpochSums(self.in_training)
        self.adapter.begin(TRAIN, done.step)
        began, waited = perf_counter(), done.data_wait_s
        portions = self.loader.epoch(done.epoch)
        steps_per_epoch = self.loader.plan.steps_per_epoch
        for step_in_epoch in range(steps_per_epoch):
            asked = perf_counter_ns()
            portion = next(portions)
            got = perf_counter_ns()
            if self.spans is not None:
                self.spans.add("data", "wait for data", asked, got)
            key = StreamKey(self.seed, done.step, self.loader.shard)
            at = StepInfo(done.step, key, self.settings(done.step), len(portion.indices), self.told_to_stop())
            self._taken[done.step] = _Taken(step_in_epoch, portion, at.settings, (got - asked) * 1e-9)
            done.step += 1
            for stats in self.algorithm.step(portion.micro_batches, at):
                self._account(stats, sums)
            if done.reason:
                break
        for stats in self.algorithm.drain():
            self._account(stats, sums)
        done.train_s += perf_counter() - began
        if done.reason != "not finite":
            self._end_of_epoch(sums, perf_counter() - began, done.data_wait_s - waited)

    def _account(self, stats: StepStats, sums: _EpochSums) -> None:
        """What is to be done when the sums of a step are known, which on a GPU is one step later."""
        done = self.progress
        taken = self._taken.pop(stats.step)
        done.data_wait_s += taken.wait_s
        done.num_samples += stats.num_samples
        if stats.num_stops:
            done.reason = done.reason or "interrupted"
        if stats.num_not_finite:
            self._not_finite(stats, taken.portion)
            return
        if not stats.weight:
            done.num_skipped += 1
            self._say(f"warning: no sample of step {stats.step} counts (all are ignored or weighted 0); the update is left out")
            return
        sums.add(stats)
        if not self.observers:
            return
        wall_s = perf_counter() - self._began
        event = StepDone(
            stats.step,
            done.epoch,
            taken.step_in_epoch,
            stats.loss,
            lr_of(taken.settings),
            stats.num_samples,
            wall_s,
            taken.wait_s,
            sums.metrics_so_far,
        )
        for observer in self.observers:
            observer.step(event)

    def _end_of_epoch(self, sums: _EpochSums, took_s: float, waited_s: float) -> None:
        done, goals = self.progress, self.goals
        metrics = means(self.comm, self.adapter.end(TRAIN)) | sums.values()
        if not done.reason:  # one who was told to stop has no time for an evaluation
            self.algorithm.settle()
            metrics |= self.evaluate()
            if self.comm.size > 1:  # what is decided by them must be decided alike, also where a user's metric is not
                metrics = self.comm.broadcast_object(metrics)
        value = metrics.get(goals.monitor) if goals.monitor is not None else None
        is_best = value is not None and goals.better(value, done.best_value)
        if is_best:
            done.best_epoch, done.best_value = done.epoch, value
            self.keep_best()
        wall_s = perf_counter() - self._began
        event = EpochDone(
            done.epoch,
            done.step,
            metrics,
            lr_of(self.settings(max(done.step - 1, 0))),
            sums.num_samples / took_s if took_s else 0.0,
            wall_s,
            waited_s,
            is_best,
        )
        for observer in self.observers:
            observer.epoch(event)
        done.history.append(asdict(event))
        done.epoch += 1
        if value is not None and not done.reason:
            self._judge(value, wall_s)

    def _judge(self, value: float, wall_s: float) -> None:
        done, goals = self.progress, self.goals
        if goals.reached(value):
            done.time_to_target_s = wall_s
            done.reason = "target reached"
        elif goals.patience is not None and done.epoch - 1 - (done.best_epoch or 0) >= goals.patience:
            done.reason = "stopped early"

    def evaluate(self) -> dict[str, float]:
        """Collective, blocking: the validation data, each sample once."""
        if self.validation is None:
            return {}
        began = perf_counter_ns()
        found = evaluate(
            self.comm, self.adapter, self.validation, self.metrics, self.evaluation_batch, "val_", self.tell_evaluating
        )
        if self.spans is not None:
            self.spans.add("compute", "evaluation", began, perf_counter_ns())
        return found

    def tell_evaluating(self, done: int, total: int) -> None:
        """Local."""
        for observer in self.observers:
            observer.evaluating(done, total)

    def _not_finite(self, stats: StepStats, portion: Portion) -> None:
        """Collective: say whose samples gave a loss that is no number. The update was left out on all ranks."""
        done = self.progress
        text = culprits(self.comm, self.adapter, stats, portion)
        done.num_skipped += 1
        if self.goals.on_nan == "stop":
            done.reason = "not finite"
            done.failure = f"{text}; the run stopped before the update, --on-nan skip would leave out such updates and go on"
        else:
            self._say(f"warning: {text}; the update is left out (--on-nan skip)")

    def _say(self, text: str) -> None:
        for observer in self.observers:
            observer.say(text)


class _Taken(NamedTuple):
    """A step whose sums are not known yet."""

    step_in_epoch: int
    portion: Portion
    settings: Settings
    wait_s: float


class _EpochSums:
    """Exact sums over the steps of an epoch."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics
        self._sums = np.zeros(sum(metric.num_sums or 0 for metric in metrics))
        self._loss_sum = 0.0
        self._weight = 0.0
        self._named: dict[str, tuple[float, float]] = {}
        self.num_samples = 0

    def add(self, stats: StepStats) -> None:
        self._loss_sum += stats.loss_sum
        self._weight += stats.weight
        self._sums += stats.metric_sums
        self.num_samples += stats.num_samples
        for name, (value, weight) in stats.named.items():
            before = self._named.get(name, (0.0, 0.0))
            self._named[name] = (before[0] + value, before[1] + weight)

    def metrics_so_far(self) -> dict[str, float]:
        found, start = {}, 0
        for metric in self._metrics:
            width = metric.num_sums or 0
            found[metric.name] = metric.value(self._sums[start : start + width])
            start += width
        return found | {name: value / weight for name, (value, weight) in self._named.items() if weight}

    def values(self) -> dict[str, float]:
        """The means over the samples seen, each with the weights of its step."""
        if not self._weight:
            return {}
        return {"loss": self._loss_sum / self._weight, **self.metrics_so_far()}


def lr_of(settings: Settings) -> float:
    """Pure: the learning rate to be shown, that of the first group."""
    return next(iter(settings.values()))[0].get("lr", math.nan)


def in_training(metrics: Sequence[Metric]) -> tuple[Metric, ...]:
    """Pure: the metrics that are sums of a fixed width, so that they can travel with every gradient."""
    return tuple(metric for metric in metrics if metric.num_sums is not None)


@dataclass(frozen=True)
class Followed:
    """The metrics of every training step as one vector of sums."""

    metrics: Sequence[Metric]

    @property
    def num_sums(self) -> int:
        return sum(metric.num_sums or 0 for metric in self.metrics)

    def __call__(self, outputs: Any, targets: Any, weights: Any) -> Tensor | Sequence[float]:
        with torch.no_grad():
            if len(self.metrics) == 1:
                (only,) = self.metrics
                return only.quick_sums(outputs, targets, weights) or only.sums(outputs, targets, weights)
            quick = [metric.quick_sums(outputs, targets, weights) for metric in self.metrics]
            if all(one is not None for one in quick):
                return [number for one in quick if one is not None for number in one]
            return torch.cat([metric.sums(outputs, targets, weights) for metric in self.metrics])
