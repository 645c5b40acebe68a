"""A process that runs trials, one after the other, until it is killed or its supervisor is gone. It is a child of a supervisor, so
the study continues whatever a trial does to this process.

    in   {"do": "train", ...}; {"do": "drop", "id": ...}, a command not begun yet; {"go": true}, the answer to an epoch or a report
    out  {"is": "ready"}; {"is": "epoch", ...}; {"is": "done", ...}; {"is": "failed", "kind": ..., "reason": ...}
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from abc import ABC, abstractmethod
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

from unisono.comm.control_plane.channel import Channel
from unisono.errors import CannotWrite, CommError, InUse, ReportedElsewhere, TrainingFailed, UsageError
from unisono.tuning.workers.messages import Dropped, Message, MessageQueue
from unisono.tuning.workers.trial_output import TrialOutput

MEMORY_WORDS = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")
"""How frameworks report that memory is exhausted, in errors without a type of their own."""
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
MEMORY, PEER, DIVERGED, MISTAKE, DISK, ERROR = "memory", "peer", "diverged", "mistake", "disk", "error"
"""Kinds of failures. PEER: another worker failed and knows the cause; DISK: the trial is not to blame."""


class TrialRunner(ABC):
    """The work of this process in a study: training parts of trials, or calling an objective."""

    leaves_files: ClassVar[bool] = True
    """Whether a trial writes more to its folder than its output."""

    @abstractmethod
    def load(self) -> None:
        """Loads what workers on one machine can share. Starts no thread. Local, blocking."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Returns what the coordinator must know before the first trial. Local, blocking."""

    @abstractmethod
    def run(self, command: Message, messages: MessageQueue) -> dict[str, Any]:
        """Runs one part of a trial (a whole training on one fold, or one call of the objective) and returns the fields of its
        result message. Blocking."""


def serve_trials(runner: TrialRunner, channel: Channel) -> None:
    """Runs the trials that the coordinator sends until the other end of the channel is gone. Local, blocking."""
    messages, output = MessageQueue(channel), TrialOutput()
    messages.send({"is": "ready", "pid": os.getpid()})
    while True:
        try:
            command = messages.next_command(output.remove_empty)
        except (EOFError, OSError):
            return
        began = perf_counter()
        with output.redirected_to(
            Path(command["output"]), command.get("at", {}).get("world_size", 1) == 1, not runner.leaves_files
        ):
            result = _run_trial(runner, command, messages)
            messages.send({**result, "id": command["id"], "took_s": perf_counter() - began})


def _run_trial(runner: TrialRunner, command: Message, messages: MessageQueue) -> dict[str, Any]:
    """Runs one part of a trial; returns the message on its result or its failure, and never raises."""
    try:
        return {"is": "done", **runner.run(command, messages)}
    except BaseException as error:  # noqa: BLE001 - whatever a trial raises is a result, and the block continues
        if not isinstance(error, (UsageError, TrainingFailed, Dropped)):
            traceback.print_exc()
        kind, reason = classify_failure(error)
        print(reason, file=sys.stderr, flush=True)
        return {"is": "failed", "kind": kind, "reason": reason}


def _is_disk_error(error: BaseException | None) -> bool:
    """Whether an error, or its cause, is that nothing could be written. Pure."""
    while error is not None:
        if isinstance(error, CannotWrite) or (isinstance(error, OSError) and error.errno in NO_SPACE):
            return True
        error = error.__cause__
    return False


def classify_failure(error: BaseException) -> tuple[str, str]:
    """Returns the kind of a failure, and its reason in a sentence. Pure."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, MemoryError) or (
        isinstance(error, (RuntimeError, OSError)) and any(word in str(error).lower() for word in MEMORY_WORDS)
    ):
        return MEMORY, f"out of memory ({text})"
    if _is_disk_error(error):
        return DISK, str(error)
    if isinstance(error, (CommError, ReportedElsewhere, InUse)):
        return PEER, text
    if isinstance(error, TrainingFailed):
        return DIVERGED, str(error)
    if isinstance(error, UsageError):
        return MISTAKE, str(error)
    return ERROR, text
