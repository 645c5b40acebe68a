"""The part that all trainers share: resuming, the end of an epoch, checkpoints, evaluation, observers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from torch import nn

from unisono.algorithms.base import Algorithm, Settings
from unisono.comm.base import Communicator
from unisono.comm.on_all_ranks import on_all_ranks
from unisono.comm.replicate import replicate
from unisono.data.source import Source
from unisono.events import EpochDone, Observer, Spans
from unisono.model.base import EVALUATING, StreamKey
from unisono.task.task import BEST
from unisono.training.checkpointing.checkpoint import Loaded
from unisono.training.checkpointing.resume import Restored, share_state
from unisono.training.checkpointing.saving import Saving
from unisono.training.epoch_sums import EpochSums
from unisono.training.evaluation import EvaluationPlan, Shards, evaluate
from unisono.training.progress import INTERRUPTED, NOT_FINITE, PRUNED, Progress
from unisono.training.run_folder.weights import weights_of
from unisono.training.run_hooks import RunHooks
from unisono.training.training_parts import TrainingParts

if TYPE_CHECKING:
    from unisono.training.captured_evaluation import CapturedEvaluation


@dataclass(kw_only=True)
class TrainerBase(ABC):
    """One training on one rank. All ranks make the same calls."""

    comm: Communicator
    parts: TrainingParts
    evaluation_batch: int
    """Number of samples that a rank evaluates at a time."""
    hooks: RunHooks = field(default_factory=RunHooks)
    observers: Sequence[Observer] = ()
    saving: Saving | None = None
    spans: Spans | None = None
    max_steps: int | None = None
    """Number of steps of the whole run after which it stops, as if a stop were requested."""
    progress: Progress = field(default_factory=Progress)
    algorithm: Algorithm = field(init=False)

    def __post_init__(self) -> None:
        parts = self.parts
        self.adapter, self.algorithm, self.loader = parts.adapter, parts.algorithm, parts.loader
        self.settings, self.goals, self.seed = parts.settings, parts.goals, parts.task.seed
        self.train_metrics, self.validation = parts.train_metrics, parts.splits.validation
        self.progress = replace(self.progress, monitor=self.goals.monitor, weights=self.goals.weights)
        self.restored: Restored | None = None
        """The state to resume from, until the first epoch has begun with it."""
        self.evaluated_model: nn.Module = self.adapter.model
        """The model whose weights the newest evaluation saw."""
        self.unfinished: Mapping[str, float] = {}
        """Loss and metrics of an epoch that was cut short."""
        self.save_requested = False
        """Whether the state is to be saved as soon as it can be."""
        self.captured_evaluation = self._capture_evaluations()
        """Evaluates batches as recorded work; None where each runs as it is."""
        self.gpu_notes: list[str] = []
        """What was said about how steps are computed."""
        self._began = perf_counter()

    @abstractmethod
    def train(self) -> Progress:
        """Collective, blocking: trains to the end, whatever ends it."""

    # ---- resume ----------------------------------------------------------------------------------------------------

    def resume(self, loaded: Loaded | None) -> list[str] | None:
        """Collective, blocking, before `train`: restores the checkpoint that rank 0 has loaded. Returns what a user should know
        about it; None where there is no checkpoint."""
        state = None if loaded is None else loaded.snapshot.state()
        state = share_state(self.comm, state, self.algorithm)
        return None if state is None else on_all_ranks(self.comm, lambda: self.restore(Restored(state)))

    def restore(self, restored: Restored) -> list[str]:
        """Local, before `train`: restores an earlier attempt. Returns what a user should know about it."""
        notes = []
        restored.before_start(self.adapter)
        saved = Progress(**restored.trainer["progress"])
        same_batches = restored.trainer["plan"] == self._plan
        if saved.step_in_epoch and not same_batches:
            notes.append(
                "warning: the batches hold other samples than before (the global batch, the seed or the data changed), so the "
                "current epoch starts again"
            )
        self.restored, self.progress = restored, saved.for_resume(self.goals, same_batches)
        if self.progress.best_epoch is None and saved.best_epoch is not None:
            if self.saving is not None:
                self.saving.best.forget()
            other = f"in place of {saved.monitor}"
            if saved.monitor == self.goals.monitor:
                other = f"and {'higher' if self.goals.higher_is_better else 'lower'} is better, which it was not before"
            notes.append(
                f"warning: {self.goals.monitor} decides now which epoch is best, {other}; it compares only "
                f"epochs from {self.progress.compared_from + 1} on, as the weights of earlier ones are not kept"
            )
        return notes + restored.notes(self.comm, bool(self.progress.step_in_epoch))

    def state(self, sums: EpochSums | None) -> dict[str, Any]:
        """Local: what `restore` needs besides the state of the replicas, in plain values."""
        progress = replace(self.progress, wall_s=perf_counter() - self._began)
        return {"progress": asdict(progress), "sums": None if sums is None else sums.state(), "plan": self._plan}

    @property
    def _stream(self) -> int:
        """The random stream for draws outside of steps: this worker's own, or with shards the same on all."""
        return self.loader.shard if self.loader.own_shards is None else 0

    @property
    def _plan(self) -> list[int]:
        """The values that decide which samples a step of an epoch has."""
        plan = self.loader.plan
        return [plan.num_samples, plan.global_batch, plan.seed, int(plan.shuffle)]

    # ---- the end of an epoch ---------------------------------------------------------------------------------------

    def _finish_epoch(self, sums: EpochSums, metrics: Mapping[str, float]) -> None:
        """Notes whether the epoch is the best, tells the observers, and decides whether the run ends with it."""
        done, goals = self.progress, self.goals
        value = metrics.get(goals.monitor) if goals.monitor is not None else None
        is_best = value is not None and goals.better(value, done.best_value)
        if value is not None and is_best:
            done.keep_best(value)
            self.hooks.keep_best(self.evaluated_model, done.step)
        event = EpochDone(
            epoch=done.epoch,
            step=done.step,
            metrics=metrics,
            lr=shown_lr(self.settings(max(done.step - 1, 0))),
            samples_per_s=sums.num_samples / sums.took_s if sums.took_s else 0.0,
            wall_s=perf_counter() - self._began,
            data_wait_s=sums.waited_s,
            is_best=is_best,
            weights=self.hooks.hash_weights(self.evaluated_model),
        )
        for observer in self.observers:
            observer.epoch(event)
        done.finish_epoch(asdict(event), goals)
        if not self.should_continue(done.metrics) and done.epoch < goals.num_epochs:
            done.stop(PRUNED)
        is_last = done.reason or done.epoch == goals.num_epochs  # which `train` saves
        if self.saving is not None and not is_last and self.saving.after_epoch(done.epoch):
            self._save_checkpoint(self.state(None), mid_epoch=False)

    def stop_requested(self) -> bool:
        """Local, cheap: whether a stop of this process was requested."""
        return self.hooks.stop_requested()

    def should_continue(self, metrics: Mapping[str, float]) -> bool:
        """Collective, blocking for as long as the answer takes: whether the training continues after this epoch; the same on all
        ranks."""
        ask = self.hooks.should_continue
        if ask is None:
            return True
        # It may depend on a training that is slower than this one by hours, so the others wait for rank 0 without the limit of
        # other calls. Should it die, they hear of that as ever.
        answer = ask(self.progress.epoch, metrics) if self.comm.rank == 0 else None
        return bool(self.comm.broadcast_object(answer, timeout_s=math.inf))

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    def save_final(self) -> None:
        """Collective: the state of a training that has come to its end."""
        if self.progress.reason not in (INTERRUPTED, NOT_FINITE):
            self._save_checkpoint(self.state(None), mid_epoch=False, is_last=True)

    def _save_checkpoint(self, state: Mapping[str, Any], mid_epoch: bool, is_last: bool = False) -> None:
        """Collective: saves a checkpoint."""
        if self.saving is None:
            return
        for observer in self.observers:
            observer.saving()
        self.saving.save(self.progress.step, state, mid_epoch, is_last)

    # ---- evaluation ------------------------------------------------------------------------------------------------

    def test(self) -> Mapping[str, float]:
        """Collective, blocking, after `train`: the metrics of the test data, with the weights that count. Where a stop cuts that
        short, the training counts as interrupted, so that another attempt makes it."""
        source = self.parts.splits.test
        if source is None or self.progress.reason in (INTERRUPTED, NOT_FINITE):
            return {}
        with self._counting_weights():
            found = self.evaluate(source, "test_")
        if found is None:
            self.progress = replace(self.progress, reason=INTERRUPTED)
        return found or {}

    @contextmanager
    def _counting_weights(self) -> Iterator[None]:
        """Context manager, collective, blocking: the model has the weights that count, and afterwards the final ones again."""
        if self.progress.weights_that_count != BEST or self.saving is None:
            yield
            return
        model = self.adapter.model
        final = {name: one.detach().clone() for name, one in weights_of(model).items()}
        best = {name: one.clone() for name, one in final.items()}
        if self.comm.rank == 0:  # which keeps them
            for name, one in self.saving.best.weights.items():
                best[name].copy_(one)
        replicate(self.comm, best.values())
        try:
            model.load_state_dict(best, strict=False)
            yield
        finally:
            model.load_state_dict(final, strict=False)

    def evaluate(self, source: Source, prefix: str) -> dict[str, float] | None:
        """Collective, blocking: each sample of a source once; None if a stop was requested of a rank meanwhile. What a model draws
        here is a function of the step too, so that another attempt draws the same."""
        self._draw_as(self._stream)
        plan = EvaluationPlan(
            self.parts.metrics,
            self.evaluation_batch,
            self._tell_evaluating,
            self.stop_requested,
            self._evaluation_shards(),
            self.parts.resident.batches_of(source),
            self.captured_evaluation,
        )
        found = evaluate(self.comm, self.adapter, source, plan, prefix)
        self._say_notes()
        return found

    def _capture_evaluations(self) -> CapturedEvaluation | None:
        recorder = self.adapter.recorder
        if recorder is None:
            return None
        from unisono.training.captured_evaluation import CapturedEvaluation

        return CapturedEvaluation(self.adapter, recorder, self.parts.metrics)

    def _evaluation_shards(self) -> Shards | None:
        """Local: the parts of an evaluation where its bits do not depend on where each is computed; None where each rank has
        one."""
        own, state = self.loader.own_shards, self.algorithm.shard_state
        if own is None:
            return None

        def begin(shard: int) -> None:
            if shard == own.start:
                state.begin()
            else:
                state.put_back()
            self._draw_as(shard)

        return Shards(self.loader.num_shards, own, begin)

    def _draw_as(self, shard: int) -> None:
        """Local: sets the random stream of this shard for what a model draws in an evaluation."""
        self.adapter.seed(StreamKey(self.seed, self.progress.step, shard, EVALUATING))

    # ---- events for observers --------------------------------------------------------------------------------------

    def _tell_evaluating(self, done: int, total: int) -> None:
        """Tells the observers that `done` of `total` batches are evaluated."""
        for observer in self.observers:
            observer.evaluating(done, total)

    def _say_notes(self) -> None:
        """Local: tells the user how steps are computed."""
        self.gpu_notes += self.adapter.notes
        for text in self.adapter.notes:
            self._say(text)
        self.adapter.notes.clear()

    def _say(self, text: str) -> None:
        """Gives the observers a message for the user."""
        for observer in self.observers:
            observer.say(text)


def shown_lr(settings: Settings) -> float:
    """Pure: the learning rate to be shown, that of the first group."""
    return next(iter(settings.values()))[0].get("lr", math.nan)
