"""Records in status.json how one attempt of a run ends, whatever ends it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from unisono.cluster.resolve import slurm_job
from unisono.errors import STOPPED_CODE, CannotWrite, ReportedElsewhere, TrainingFailed, UsageError
from unisono.training.progress import INTERRUPTED
from unisono.training.run_folder.run_status import Status
from unisono.training.trainer_base import TrainerBase


@contextmanager
def record_attempt(status: Status | None, trainer: TrainerBase) -> Iterator[None]:
    """Context manager, local: status.json says that the run is under way, and afterwards how this attempt ended."""
    if status is None:
        yield
        return

    def end(state: str, code: int, reason: str) -> None:
        status.end(state, code, reason, trainer.progress.step, trainer.progress.epoch)

    parts, done = trainer.parts, trainer.progress
    num_steps = parts.task.epochs * parts.loader.plan.steps_per_epoch
    status.begin(done.step, done.epoch, num_steps, parts.algorithm.num_workers, slurm_job())
    try:
        yield
    except CannotWrite as error:  # a mistake before the training, a failure after it
        end("failed", 1, str(error))
        raise TrainingFailed(str(error)) from error
    except BaseException as error:
        end("failed", _exit_code(error), f"{type(error).__name__}: {error}")
        raise
    finally:
        if trainer.saving is not None:
            trainer.saving.close()
    reason = trainer.progress.reason
    end("stopped", STOPPED_CODE, reason) if reason == INTERRUPTED else end("finished", 0, reason)


def _exit_code(error: BaseException) -> int:
    """Pure: the exit code of a process that ends with this error."""
    if isinstance(error, ReportedElsewhere):
        return error.code
    return 2 if isinstance(error, UsageError) else 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
