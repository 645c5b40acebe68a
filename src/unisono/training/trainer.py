"""The loop in lock step: epochs of steps, an evaluation after each. It alone owns the step number and the learning rate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter, perf_counter_ns
from typing import NamedTuple

from unisono.algorithms.base import LockStepAlgorithm, Settings, StepInfo
from unisono.data.loader import Portion
from unisono.events import StepDone
from unisono.model.base import BEGINNING, ENDING, TRAIN, StreamKey
from unisono.model.tail import LATEST, StepStats
from unisono.training.epoch_sums import EpochSums
from unisono.training.logged_values import mean_logged_values
from unisono.training.not_finite import describe_not_finite
from unisono.training.progress import FINISHED, INTERRUPTED, NOT_FINITE, Progress
from unisono.training.trainer_base import TrainerBase, shown_lr


@dataclass(kw_only=True)
class Trainer(TrainerBase):
    """The training loop of one rank where all workers take every step, or every round of steps, together."""

    algorithm: LockStepAlgorithm = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._pending: dict[int, _PendingStep] = {}

    def train(self) -> Progress:
        """Collective, blocking: trains to the end, whatever ends it."""
        done = self.progress
        self._began = perf_counter() - done.wall_s
        self.algorithm.start()
        if self.restored is not None:
            self.restored.after_start(self.comm, self.adapter, self.algorithm)
        while not done.reason and done.epoch < self.goals.num_epochs:
            if self.max_steps is not None and done.step >= self.max_steps:
                done.stop(INTERRUPTED)
                break
            self._train_epoch()
        done.stop(FINISHED)
        self.save_final()
        self.algorithm.synchronise()
        self.algorithm.finish()
        return done

    def _train_epoch(self) -> None:
        """Trains the rest of an epoch: until its last step, a stop, or an early end; then evaluates it unless the run stopped."""
        done = self.progress
        sums = self._start_epoch()
        self._counted_s = perf_counter()
        portions = self.loader.epoch(done.epoch, done.step_in_epoch)
        for step_in_epoch in range(done.step_in_epoch, self.loader.plan.steps_per_epoch):
            portion, at = self._start_step(portions, step_in_epoch)
            for stats in self.algorithm.step(portion.micro_batches, at):
                self._record_step(stats, sums)
            if self.adapter.notes:
                self._say_notes()
            self._release_samples(done.step - 1 - LATEST)
            if self.hooks.after_step is not None:
                self.hooks.after_step(done.step)
            if done.step == self.max_steps:
                done.stop(INTERRUPTED)
            if done.reason or self.hooks.ends_epoch_early():
                break
            is_due = self.saving is not None and (self.save_requested or self.saving.after_step(done.step))
            if is_due and not self._save_mid_epoch(sums):
                break
        self._record_pending_steps(sums)
        self._count_time(sums)
        if done.reason == NOT_FINITE:
            return
        metrics = None if done.reason else self._evaluate_epoch(sums)
        if metrics is None:
            done.stop(INTERRUPTED)
            self._save_checkpoint(self.state(sums), mid_epoch=True, is_last=True)
            self.unfinished = sums.values()
        else:
            self._finish_epoch(sums, metrics)

    def _start_epoch(self) -> EpochSums:
        """Seeds and begins the epoch, or restores it to where it was saved; returns its sums so far."""
        done = self.progress
        sums = EpochSums(self.train_metrics)
        first_step = done.step - done.step_in_epoch
        self.adapter.seed(StreamKey(self.seed, first_step, self._stream, BEGINNING))
        if done.step_in_epoch and self.restored is not None:
            sums.restore(self.restored.trainer["sums"])
            self.adapter.resume_epoch(done.epoch, first_step, done.step, self.restored.so_far(self.comm))
        else:
            self.adapter.begin(TRAIN, done.step, done.epoch)
        self.restored = None
        return sums

    def _start_step(self, portions: Iterator[Portion], step_in_epoch: int) -> tuple[Portion, StepInfo]:
        """Local: begins a step. Blocks until its samples are there."""
        done, saving = self.progress, self.saving
        asked = perf_counter_ns()
        portion = next(portions)
        got = perf_counter_ns()
        if self.spans is not None:
            self.spans.add("data", "wait for data", asked, got)
        at = StepInfo(
            done.step,
            StreamKey(self.seed, done.step, self.loader.shard),
            self.settings(done.step),
            len(portion.indices),
            self.stop_requested(),
            saving is not None and saving.is_due_by_clock(),
        )
        self._pending[done.step] = _PendingStep(step_in_epoch, portion, at.settings, (got - asked) * 1e-9)
        done.count_step(step_in_epoch)
        return portion, at

    def _record_step(self, stats: StepStats, sums: EpochSums) -> None:
        """Counts and reports a step once its sums are known: on a GPU one step later, or at the end of a round."""
        done = self.progress
        begun = self._pending.pop(stats.step)
        if done.reason == NOT_FINITE:
            return  # no update followed the step that ended the training, whose message stays
        done.count_data(stats.num_samples, begun.wait_s)
        sums.add_time(waited_s=begun.wait_s)
        if stats.num_stops:
            done.stop(INTERRUPTED)
        if stats.num_saves:
            self.save_requested = True
        if stats.num_not_finite:
            self._record_not_finite(stats, begun.portion)
            return
        if not stats.weight:
            done.count_skipped()
            self._say(f"warning: no sample of step {stats.step} counts (all are ignored or weighted 0); the update is left out")
            return
        sums.add(stats)
        if not self.observers:
            return
        event = StepDone(
            step=stats.step,
            epoch=done.epoch,
            step_in_epoch=begun.step_in_epoch,
            loss=stats.loss,
            lr=shown_lr(begun.settings),
            num_samples=stats.num_samples,
            wall_s=perf_counter() - self._began,
            data_wait_s=begun.wait_s,
            so_far=sums.metrics_so_far,
        )
        for observer in self.observers:
            observer.step(event)

    def _record_not_finite(self, stats: StepStats, portion: Portion) -> None:
        """Collective: reports which samples gave a loss that is not finite. The update was left out, on all ranks or by the
        workers that take steps by themselves."""
        when = "in the round after it" if self.algorithm.replicas_differ else "before it"
        text = describe_not_finite(self.comm, self.adapter, stats, portion)
        self.progress.count_skipped()
        if self.goals.on_nan == "stop":
            self.progress.fail(f"{text}; the run stopped {when}. To leave such updates out add --on-nan skip --accept-changes")
        else:
            self._say(f"warning: {text}; the update is left out (--on-nan skip)")

    def _release_samples(self, step: int) -> None:
        """Local: releases the samples of a step, unless its loss may have to be computed again."""
        begun = self._pending.get(step)
        if begun is not None and step not in self.algorithm.suspects:
            self._pending[step] = begun._replace(portion=begun.portion._replace(micro_batches=()))

    def _record_pending_steps(self, sums: EpochSums) -> None:
        """Collective: gets the sums of the steps that are not known yet and records them, which may end the training."""
        for stats in self.algorithm.flush_stats():
            self._record_step(stats, sums)

    def _count_time(self, sums: EpochSums) -> None:
        """Local: counts the time since the last call as time of training steps."""
        before, self._counted_s = self._counted_s, perf_counter()
        self.progress.count_time(self._counted_s - before)
        sums.add_time(self._counted_s - before)

    def _save_mid_epoch(self, sums: EpochSums) -> bool:
        """Collective: saves a checkpoint within an epoch, once the sums of all steps are known; False if one of them ends the
        training."""
        self.save_requested = False
        self._record_pending_steps(sums)
        if self.progress.reason:
            return False
        self._count_time(sums)
        self._save_checkpoint(self.state(sums), mid_epoch=True)
        return True

    # ---- evaluation ------------------------------------------------------------------------------------------------

    def _evaluate_epoch(self, sums: EpochSums) -> dict[str, float] | None:
        """Collective: evaluates and returns the metrics of the epoch; None if the evaluation was cut short, so that another
        attempt repeats it."""
        if self.validation is not None and not self.comm.broadcast_object(self.hooks.fits_evaluation()):
            return None
        self.algorithm.synchronise()
        self.adapter.seed(StreamKey(self.seed, self.progress.step, self._stream, ENDING))
        logged = self.adapter.end(TRAIN)
        found = self._validate() if self.hooks.evaluation_is_due(self.progress.epoch) else {}
        if found is None:
            return None
        metrics = mean_logged_values(self.comm, logged) | sums.values() | found
        if self.comm.size > 1:  # what is decided by them must be decided alike, also where a user's metric is not
            metrics = self.comm.broadcast_object(metrics)
        return metrics

    def _validate(self) -> dict[str, float] | None:
        """Collective, blocking: evaluates the validation data, each sample once; None if a stop was requested of a rank
        meanwhile."""
        if self.validation is None:
            return {}
        began = perf_counter_ns()
        found = self.evaluate(self.validation, "val_")
        if self.spans is not None:
            self.spans.add("compute", "evaluation", began, perf_counter_ns())
        return found


class _PendingStep(NamedTuple):
    """A step whose sums are not known yet."""

    step_in_epoch: int
    portion: Portion
    settings: Settings
    wait_s: float
