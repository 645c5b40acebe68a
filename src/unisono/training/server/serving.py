"""The server's loop: calls in, replies out, and between them epochs, evaluations, saves and the decision to stop."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from unisono.algorithms.server.call_record import LOST, STOP, CallRecorder, ReplayServer
from unisono.algorithms.server.service import Applied, Service
from unisono.algorithms.server.simulated import SimulatedServer
from unisono.algorithms.server.waits import Waits
from unisono.comm.exchange.base import Request, Server
from unisono.events import StepDone
from unisono.training.epoch_sums import EpochSums
from unisono.training.progress import FINISHED, INTERRUPTED, NOT_FINITE
from unisono.training.server.background_evaluation import BackgroundEvaluation
from unisono.training.trainer_base import shown_lr

if TYPE_CHECKING:
    from unisono.training.server.server_trainer import ServerTrainer

POLL_S = 0.05
"""How long the server waits for a call before it checks for other work."""
MOST_SHOWN = 10
NUM_JUDGED = 100
"""Updates of an attempt, in its first whole epoch or before, after which their mean age is judged."""


@dataclass
class EndedEpoch:
    """An epoch whose steps are done and whose evaluation is missing."""

    sums: EpochSums
    waits: Waits
    step: int
    """The server's counter at its end; workers continue while it is evaluated."""


@dataclass(kw_only=True)
class Serving:
    """The loop of a server in one attempt of a run."""

    trainer: ServerTrainer
    server: Server
    service: Service
    evaluation: BackgroundEvaluation[EndedEpoch]
    call_recorder: CallRecorder | None
    sums: EpochSums
    waits: Waits
    pending: EpochSums | None = None
    """Sums of an epoch whose evaluation was cut short, here or in an earlier attempt."""
    _num_stops: int = 0
    _is_judged: bool = False
    """Whether the algorithm was asked for its advice."""
    _is_past_end: bool = False
    """In a replay: whether the user was told that the record is over."""
    _stop_is_recorded: bool = False
    """In a replay: whether the record says to stop here; then the state can be saved here, as it was in the recorded run."""
    _verdict: str = ""
    """In a replay: what an evaluation has decided. The recorded run learned of it when the next epoch ended, or before, so it
    evaluated no other."""
    _saved_at: int = 0
    _save_requested: bool = False
    _is_last: bool = False
    """Whether the save under way is the last one."""

    def run(self) -> None:
        """Local, blocking: serves until every worker was told to end."""
        service, server = self.service, self.server
        self._saved_at = service.step
        if self.pending is not None:
            pending, self.pending = self.pending, None
            self._evaluate(pending, Waits())
        while not service.is_over:
            request = server.receive(POLL_S)
            began = perf_counter()
            for caller in server.newly_lost():
                self._handle_loss(caller, "is gone")
            for caller in server.newly_left():
                self._handle_loss(caller, "has left")
            if request is not None:
                self._handle(request)
            self._end_epochs()
            self._decide()
            self._advance_checkpoint()
            for answer in service.pop_answers():
                server.reply(*answer)
            ended = perf_counter()
            self.waits.add_busy(ended - began)
            if self.trainer.spans is not None and request is not None:
                self.trainer.spans.add("compute", "serve a call", int(began * 1e9), int(ended * 1e9))

    # ---- calls -----------------------------------------------------------------------------------------------------

    def _handle(self, request: Request) -> None:
        """Records the request and lets the service answer it; the updates that it completes are counted."""
        if self.service.changes_state(request):
            self._record_line(str(request.caller))
        for applied in self.service.handle(request):
            self._count_update(applied)
        if isinstance(self.server, ReplayServer) and self.server.is_past_end and not self._is_past_end:
            self._is_past_end = True
            self.trainer.tell("warning: the recorded order (--replay) ends here; calls are now served as they come")

    def _handle_loss(self, caller: int, how: str) -> None:
        """Takes a lost worker out: its batches are dealt out again, and a round that waited only for it is applied."""
        if caller not in self.service.workers:  # it was told to end, and did
            return
        self._record_line(f"{LOST}{caller}")
        num = self.service.lose(caller)
        self.trainer.tell(f"warning: worker {caller} {how}; {num} of its batches are assigned again")
        for applied in self.service.apply_round():
            self._count_update(applied)

    def _count_update(self, applied: Applied) -> None:
        """Adds an applied update to progress and sums, and tells the observers; one that was not finite is reported instead."""
        trainer, stats = self.trainer, applied.stats
        done = trainer.progress
        self.waits.add(applied)
        self._judge()
        self._num_stops += stats.num_stops
        done.follow_server(self.service.step, self.service.ledger.units_per_epoch)
        done.count_data(stats.num_samples, 0.0)
        if stats.num_not_finite:
            self._not_finite(applied)
        elif not stats.weight and applied.lease.units:
            done.count_skipped()
            trainer.tell(
                f"warning: no sample of worker {applied.lease.worker} counts (all are ignored or weighted 0); nothing is learned"
            )
        if not stats.weight:
            return
        self.sums.add(stats)
        settings, epoch = trainer.settings(max(0, done.step - 1)), self._num_epochs_begun
        event = StepDone(
            step=done.step - 1,
            epoch=epoch,
            step_in_epoch=done.step - 1 - epoch * self.service.ledger.units_per_epoch,
            loss=stats.loss,
            lr=shown_lr(settings),
            num_samples=stats.num_samples,
            wall_s=trainer.wall_s(),
            data_wait_s=0.0,
            so_far=self.sums.metrics_so_far,
        )
        for observer in trainer.observers:
            observer.step(event)

    def _judge(self) -> None:
        """Tells the algorithm's advice on the age of updates, once."""
        if self._is_judged or self.waits.num_updates < min(NUM_JUDGED, self.service.ledger.units_per_epoch):
            return
        self._is_judged = True
        if advice := self.trainer.algorithm.advice(self.waits.staleness):
            self.trainer.tell(f"warning: {advice}")

    def _not_finite(self, applied: Applied) -> None:
        """Reports a batch whose loss is not finite. It has not changed the server's weights: its worker sent a gradient of zero."""
        trainer, plan = self.trainer, self.trainer.loader.plan
        epoch, step = divmod(applied.lease.units[0], plan.steps_per_epoch)
        samples = plan.order(epoch)[plan.batch(step)]
        shown = ", ".join(map(str, samples[:MOST_SHOWN])) + (", ..." if len(samples) > MOST_SHOWN else "")
        what = f"the loss or gradient of worker {applied.lease.worker} is not finite (its batches began with samples {shown})"
        trainer.progress.count_skipped(applied.stats.num_not_finite)
        if trainer.goals.on_nan == "stop":
            trainer.progress.fail(f"{what}; the run stopped. To leave such updates out add --on-nan skip --accept-changes")
        else:
            trainer.tell(f"warning: {what}; the update is left out (--on-nan skip)")

    # ---- epochs ----------------------------------------------------------------------------------------------------

    @property
    def _num_epochs_begun(self) -> int:
        """Returns the number of epochs whose steps are done, their evaluation or not: that of the current epoch."""
        return self.trainer.progress.epoch + (self.evaluation.about is not None)

    def _end_epochs(self) -> None:
        """Begins the evaluation of an epoch whose steps are done, and ends one whose evaluation is finished."""
        trainer, service = self.trainer, self.service
        done, units = trainer.progress, service.ledger.units_per_epoch
        if self.evaluation.is_finished():
            self._end_epoch()
        if service.step < (self._num_epochs_begun + 1) * units or self._ends_in_this_epoch():
            return
        if service.step == service.ledger.num_units and not service.ledger.is_over:
            return  # workers still send what they kept back
        if self.evaluation.about is not None:  # evaluations are slower than epochs: the server waits for the one before
            self._end_epoch()
            if self._ends_in_this_epoch():
                return
        took_s = self.waits.took_s()
        done.count_time(took_s)
        self.sums.add_time(took_s)
        self._evaluate(self.sums, self.waits)
        self.sums, self.waits = EpochSums(trainer.train_metrics), Waits()

    def _ends_in_this_epoch(self) -> bool:
        """Whether the run ends within the current epoch. A stop request alone does not mean that: the batches that still come may
        complete the epoch, and those after them belong to the next one."""
        trainer = self.trainer
        is_over = trainer.progress.reason not in ("", INTERRUPTED) or self.service.is_ending
        return is_over or bool(self._verdict) or self.pending is not None

    def _evaluate(self, sums: EpochSums, waits: Waits) -> None:
        """Begins to evaluate a copy of the model as it is now; the epoch ends here if the result is there at once."""
        self.trainer.show_server()
        self.evaluation.begin(self.trainer.adapter, EndedEpoch(sums, waits, self.service.step))
        if self.evaluation.is_finished():
            self._end_epoch()

    def _end_epoch(self) -> None:
        """Waits for the evaluation, and ends its epoch with the metrics; the run stops if the evaluation was interrupted."""
        trainer = self.trainer
        ended, found = self.evaluation.collect()
        if found is None:  # stopped meanwhile: the next attempt evaluates
            self.pending = ended.sums
            trainer.progress.stop(INTERRUPTED)
            return
        before, more = trainer.progress.reason, ended.waits.metrics()
        if isinstance(self.server, SimulatedServer):
            more |= self.server.metrics()
        done = trainer.progress
        done.follow_server(ended.step, self.service.ledger.units_per_epoch)
        trainer.end_of_epoch(ended.sums, ended.sums.values() | found | more, self.evaluation.copy.model)
        done.follow_server(self.service.step, self.service.ledger.units_per_epoch)
        if before or isinstance(self.server, ReplayServer):  # decided already, or by the record
            self._verdict = self._verdict or done.reason
            done.end_as(before)

    # ---- the end ---------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        """Decides whether to stop, and why."""
        trainer, done, ledger = self.trainer, self.trainer.progress, self.service.ledger
        decision = self.server.decision() if isinstance(self.server, ReplayServer) else None
        if decision is not None:
            done.end_as(decision)
            self._stop_is_recorded = True
        elif not done.reason:
            is_enough = trainer.max_steps is not None and done.step >= trainer.max_steps
            if self._num_stops or is_enough or trainer.stop_requested():
                done.stop(INTERRUPTED)
            elif isinstance(self.server, ReplayServer) and self.server.is_past_end:
                done.stop(self._verdict)
        if not done.reason and ledger.is_over and self.evaluation.about is None and done.epoch >= trainer.goals.num_epochs:
            done.stop(FINISHED)

    def _advance_checkpoint(self) -> None:
        """Begins a checkpoint that is due, writes it once all states have come, and ends the run if it is the last."""
        trainer, service = self.trainer, self.service
        done, saving = trainer.progress, trainer.saving
        if service.has_all_states:
            if self.evaluation.about is not None:
                return  # the state would lack its epoch; no worker is answered meanwhile, so no other evaluation begins
            if not service.is_ending:  # else it failed while the states came: those before the failure are kept
                trainer.show_server()
                service.gather()
                if self.call_recorder is not None:
                    self.call_recorder.flush()
                trainer.keep(self._state_to_save(), bool(done.step_in_epoch), self._is_last)
            if self._is_last:
                service.end()
            service.end_save()
            if self._is_last or not done.reason:
                return
        if service.is_ending:
            return
        if done.reason:
            self._begin_end()
            return
        if saving is None:
            return
        steps = saving.interval.steps
        is_due = steps is not None and done.step // steps > self._saved_at // steps
        requested = trainer.take_save_request()
        self._save_requested = self._save_requested or requested or is_due or saving.is_due_by_clock()
        if self._save_requested and service.can_save and self._lets_save:
            self._save_requested = False
            self._saved_at = done.step
            service.begin_save()

    @property
    def _lets_save(self) -> bool:
        """Returns whether a state may be saved here; in a replay only where the record lets it."""
        return not isinstance(self.server, ReplayServer) or self.server.lets_save(self.service.busy)

    def _begin_end(self) -> None:
        """Begins the end of the run: with a last checkpoint, or at once if none can be saved."""
        trainer, service, done = self.trainer, self.service, self.trainer.progress
        if self.evaluation.about is not None:
            self._end_epoch()
        if done.reason == NOT_FINITE or trainer.saving is None:
            self._record_line(f"{STOP}{done.reason}")
            service.end()
        elif self._is_last or not service.can_save:
            return
        elif not (self._stop_is_recorded or self._lets_save):  # a stop was requested where the recorded run had none
            trainer.tell(
                "warning: the recorded order (--replay) allows no checkpoint here; the same command resumes from an earlier one"
            )
            assert isinstance(self.server, ReplayServer)
            self.server.give_up()
            service.end()
        else:
            if done.reason != FINISHED:
                self._record_line(f"{STOP}{done.reason}")
            self._is_last = True
            service.begin_save()

    def _state_to_save(self) -> dict[str, Any]:
        """Returns what the checkpoint holds of the trainer, the sums and the record."""
        num_lines = 0 if self.call_recorder is None else self.call_recorder.num_lines
        sums = copy(self.sums)
        sums.add_time(self.waits.took_s())
        return {
            **self.trainer.state(sums),
            "next_number": getattr(self.server, "next_number", 0),
            "num_lines": num_lines,
            "waits": self.waits.state(),
            "pending": None if self.pending is None else self.pending.state(),
        }

    def _record_line(self, line: str) -> None:
        """Appends a line to the record of the calls, if one is written."""
        if self.call_recorder is not None:
            self.call_recorder.write(line)
