"""The loop: epochs of steps, an evaluation after each, and when to stop. It alone owns the step number and the learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from time import perf_counter, perf_counter_ns
from typing import Any, NamedTuple

from unisono.algorithms.base import Algorithm, Settings, StepInfo
from unisono.comm.base import Communicator
from unisono.data.loader import Loader, Portion
from unisono.data.source import Source
from unisono.events import EpochDone, Observer, Spans, StepDone
from unisono.model.base import BEGINNING, ENDING, LOOKING, TRAIN, ModelAdapter, StreamKey
from unisono.model.tail import StepStats
from unisono.training.epoch_sums import EpochSums
from unisono.training.evaluation import Shards, evaluate
from unisono.training.logged import means
from unisono.training.metrics import Metric
from unisono.training.not_finite import culprits
from unisono.training.progress import FINISHED, INTERRUPTED, NOT_FINITE, PRUNED, TARGET, Goals, Progress
from unisono.training.saving import Saving
from unisono.training.state import Restored


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
    hash_weights: Callable[[], str]
    """A short hash of the weights; empty on ranks that nobody asks."""
    keep_best: Callable[[], None]
    """Called, on every rank, when the replicas hold the best weights so far."""
    spans: Spans | None = None
    progress: Progress = field(default_factory=Progress)
    saving: Saving | None = None
    max_steps: int | None = None
    """After so many steps of the whole run it stops, as if told to."""
    after_step: Callable[[int], None] | None = None
    """Told the number of steps that are done, after each."""
    epoch_is_enough: Callable[[], bool] = bool
    """Asked after each step, with the same answer on all ranks: whether the epoch ends here, as if it had no more steps."""
    goes_on: Callable[[int, Mapping[str, float]], bool] | None = None
    """Asked on rank 0 after each epoch, by its number from 1 and its metrics: whether more are worth while, as a search decides."""
    no_time_to_evaluate: Callable[[], bool] = bool
    """Asked on rank 0 before an evaluation."""
    restored: Restored | None = None
    unfinished: Mapping[str, float] = field(default_factory=dict)
    """Loss and metrics of an epoch that was cut short."""

    def __post_init__(self) -> None:
        self.looked_at: Any = getattr(self.adapter, "model", None)
        """The model whose weights the newest evaluation saw."""

    def go_on_from(self, restored: Restored) -> list[str]:
        """Local, before `run`: take up an earlier life. Gives what a user should know of it."""
        notes = []
        restored.before_start(self.adapter)
        self.restored = restored
        self.progress = done = Progress(**restored.trainer["progress"])
        if done.monitor != self.goals.monitor:  # values of different metrics cannot be compared
            done.best_epoch = done.best_value = None
        if done.step_in_epoch and restored.trainer["plan"] != self._plan:
            notes.append("warning: the batches have other samples than before, so the epoch in hand starts again")
            done.step_in_epoch = 0
        notes += restored.notes(self.comm, bool(done.step_in_epoch))
        done.reason = "" if done.step_in_epoch else self.goals.verdict(done)
        if done.reason != TARGET:
            done.time_to_target_s = None
        return notes

    def state(self, sums: EpochSums | None) -> dict[str, Any]:
        """Local: what `go_on_from` needs besides the state of the replicas, in plain values."""
        progress = replace(self.progress, wall_s=perf_counter() - self._began)
        return {"progress": asdict(progress), "sums": None if sums is None else sums.state(), "plan": self._plan}

    @property
    def _stream(self) -> int:
        """Whose random numbers are drawn outside of steps: this worker's own, or with shards the same on all."""
        return self.loader.shard if self.loader.own_shards is None else 0

    @property
    def _plan(self) -> list[int]:
        """What says which samples a step of an epoch has."""
        plan = self.loader.plan
        return [plan.num_samples, plan.global_batch, plan.seed, int(plan.shuffle)]

    def run(self) -> Progress:
        """Collective, blocking: train to the end, whatever ends it."""
        done = self.progress
        done.monitor = self.goals.monitor
        self._began = perf_counter() - done.wall_s
        self._taken: dict[int, _Taken] = {}
        self._save_asked = False
        self.algorithm.start()
        if self.restored is not None:
            self.restored.after_start(self.comm, self.adapter, self.algorithm)
        while not done.reason and done.epoch < self.goals.num_epochs:
            if self.max_steps is not None and done.step >= self.max_steps:
                done.reason = INTERRUPTED
                break
            self._epoch()
        if not done.reason:
            done.reason = FINISHED
        if self.saving is not None and done.reason not in (INTERRUPTED, NOT_FINITE):
            self._keep(self.state(None), mid_epoch=False, is_last=True)
        self.algorithm.settle()
        self.algorithm.finish()
        return done

    def _epoch(self) -> None:
        done = self.progress
        sums = self._begin_epoch()
        began, waited = perf_counter(), done.data_wait_s
        portions = self.loader.epoch(done.epoch, done.step_in_epoch)
        wishes = bool if self.saving is None else self.saving.wishes
        for step_in_epoch in range(done.step_in_epoch, self.loader.plan.steps_per_epoch):
            asked = perf_counter_ns()
            portion = next(portions)
            got = perf_counter_ns()
            if self.spans is not None:
                self.spans.add("data", "wait for data", asked, got)
            key = StreamKey(self.seed, done.step, self.loader.shard)
            at = StepInfo(done.step, key, self.settings(done.step), len(portion.indices), self.told_to_stop(), wishes())
            self._taken[done.step] = _Taken(step_in_epoch, portion, at.settings, (got - asked) * 1e-9)
            done.step += 1
            done.step_in_epoch = step_in_epoch + 1
            for stats in self.algorithm.step(portion.micro_batches, at):
                self._account(stats, sums)
            self._forget_data(done.step - 2)
            if self.after_step is not None:
                self.after_step(done.step)
            if done.step == self.max_steps:
                done.reason = done.reason or INTERRUPTED
            if done.reason or self.epoch_is_enough():
                break
            is_due = self.saving is not None and (self._save_asked or self.saving.after_step(done.step))
            if is_due and not self._save(sums, began, waited):
                break
        for stats in self.algorithm.drain():
            self._account(stats, sums)
        done.train_s += perf_counter() - began
        sums.took_s += perf_counter() - began
        sums.waited_s += done.data_wait_s - waited
        if done.reason == NOT_FINITE:
            return
        metrics = None if done.reason else self._look(sums)
        if metrics is None:
            done.reason = INTERRUPTED
            if self.saving is not None:
                self._keep(self.state(sums), mid_epoch=True, is_last=True)
            self.unfinished = sums.values()
        else:
            self._end_of_epoch(sums, metrics)

    def _begin_epoch(self) -> EpochSums:
        done = self.progress
        sums = EpochSums(self.in_training)
        first_step = done.step - done.step_in_epoch
        self.adapter.seed(StreamKey(self.seed, first_step, self._stream, BEGINNING))
        if done.step_in_epoch and self.restored is not None:
            sums.restore(self.restored.trainer["sums"])
            self.adapter.go_on(done.epoch, first_step, done.step, self.restored.so_far(self.comm))
        else:
            self.adapter.begin(TRAIN, done.step, done.epoch)
        self.restored = None
        return sums

    def _save(self, sums: EpochSums, began: float, waited: float) -> bool:
        """Collective: in the middle of an epoch, once the sums of all steps are known; False if one of them ends the training."""
        assert self.saving is not None
        done = self.progress
        self._save_asked = False
        for stats in self.algorithm.drain():
            self._account(stats, sums)
        if done.reason:
            return False
        now = copy(sums)
        now.took_s += perf_counter() - began
        now.waited_s += done.data_wait_s - waited
        state = self.state(now)
        state["progress"]["train_s"] += perf_counter() - began
        self._keep(state, mid_epoch=True)
        return True

    def _keep(self, state: Mapping[str, Any], mid_epoch: bool, is_last: bool = False) -> None:
        """Collective."""
        assert self.saving is not None
        for observer in self.observers:
            observer.saving()
        self.saving.save(self.progress.step, state, mid_epoch, is_last)

    def _account(self, stats: StepStats, sums: EpochSums) -> None:
        """What is to be done when the sums of a step are known: on a GPU one step later, or at the end of a round."""
        done = self.progress
        taken = self._taken.pop(stats.step)
        done.data_wait_s += taken.wait_s
        done.num_samples += stats.num_samples
        if stats.num_stops:
            done.reason = done.reason or INTERRUPTED
        if stats.num_saves:
            self._save_asked = True
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

    def _forget_data(self, step: int) -> None:
        """Local: of steps whose sums come late only those samples are kept that may have to be looked at again."""
        taken = self._taken.get(step)
        if taken is not None and step not in self.algorithm.suspects:
            self._taken[step] = taken._replace(portion=taken.portion._replace(micro_batches=()))

    def _look(self, sums: EpochSums) -> dict[str, float] | None:
        """Collective: the metrics of the epoch with its evaluation; None where that was cut short, to be done by the next life."""
        if self.validation is not None and self.comm.broadcast_object(self.no_time_to_evaluate()):
            return None
        self.algorithm.settle()
        self.adapter.seed(StreamKey(self.seed, self.progress.step, self._stream, ENDING))
        logged = self.adapter.end(TRAIN)
        found = self.evaluate()
        if found is None:
            return None
        metrics = means(self.comm, logged) | sums.values() | found
        if self.comm.size > 1:  # what is decided by them must be decided alike, also where a user's metric is not
            metrics = self.comm.broadcast_object(metrics)
        return metrics

    def _end_of_epoch(self, sums: EpochSums, metrics: Mapping[str, float]) -> None:
        done, goals = self.progress, self.goals
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
            sums.num_samples / sums.took_s if sums.took_s else 0.0,
            wall_s,
            sums.waited_s,
            is_best,
            self.hash_weights(),
        )
        for observer in self.observers:
            observer.epoch(event)
        done.history.append(asdict(event))
        done.epoch += 1
        done.step_in_epoch = 0
        done.reason = goals.verdict(done)
        if done.reason == TARGET:
            done.time_to_target_s = wall_s
        if self.goes_on is not None and not self._ask_goes_on(metrics) and not done.reason and done.epoch < goals.num_epochs:
            done.reason = PRUNED
        is_last = done.reason or done.epoch == goals.num_epochs  # which `run` saves
        if self.saving is not None and not is_last and self.saving.after_epoch(done.epoch):
            self._keep(self.state(None), mid_epoch=False)

    def _ask_goes_on(self, metrics: Mapping[str, float]) -> bool:
        """Collective, blocking for as long as the answer takes: all end at the same step."""
        # It may depend on a training that is slower than this one by hours, so the others wait for rank 0 without the limit of
        # other calls. Should it die, they hear of that as ever, and whoever does not answer can end it.
        assert self.goes_on is not None
        answer = self.goes_on(self.progress.epoch, metrics) if self.comm.rank == 0 else None
        return bool(self.comm.broadcast_object(answer, timeout_s=math.inf))

    def evaluate(self) -> dict[str, float] | None:
        """Collective, blocking: the validation data, each sample once; None if a rank was told to stop meanwhile."""
        if self.validation is None:
            return {}
        began = perf_counter_ns()
        found = self.look_at(self.validation, "val_")
        if self.spans is not None:
            self.spans.add("compute", "evaluation", began, perf_counter_ns())
        return found

    def look_at(self, source: Source, prefix: str) -> dict[str, float] | None:
        """Collective, blocking: each sample of a source once; None if a rank was told to stop meanwhile. What a model draws here is
        a function of the step too, so that another life draws the same."""

        def draw_as(shard: int) -> None:
            self.adapter.seed(StreamKey(self.seed, self.progress.step, shard, LOOKING))

        own = self.loader.own_shards
        draw_as(self._stream)
        if own is None:
            return self._evaluated(source, prefix, None)
        state = self.algorithm.shard_state

        def begin(shard: int) -> None:
            if shard == own.start:
                state.begin()
            else:
                state.put_back()
            draw_as(shard)

        return self._evaluated(source, prefix, Shards(self.loader.num_shards, own, begin))

    def _evaluated(self, source: Source, prefix: str, shards: Shards | None) -> dict[str, float] | None:
        return evaluate(
            self.comm,
            self.adapter,
            source,
            self.metrics,
            self.evaluation_batch,
            prefix,
            self.tell_evaluating,
            self.told_to_stop,
            shards,
        )

    def tell_evaluating(self, done: int, total: int) -> None:
        """Local."""
        for observer in self.observers:
            observer.evaluating(done, total)

    def _not_finite(self, stats: StepStats, portion: Portion) -> None:
        """Collective: say whose samples gave a loss that is no number. The update was left out, on all ranks or by the workers that
        learn by themselves."""
        done = self.progress
        when = "in the round after it" if self.algorithm.replicas_differ else "before it"
        text = culprits(self.comm, self.adapter, stats, portion)
        done.num_skipped += 1
        if self.goals.on_nan == "stop":
            done.reason = NOT_FINITE
            done.failure = f"{text}; the run stopped {when}; --on-nan skip --accept-changes would leave such updates out"
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


def lr_of(settings: Settings) -> float:
    """Pure: the learning rate to be shown, that of the first group."""
    return next(iter(settings.values()))[0].get("lr", math.nan)
