"""A process that works at trials, one after the other, until it is told to end or somebody kills it. A supervisor has it as a
child, so whatever a trial does to it, the study goes on.

    in   {"do": "train", ...}; {"do": "drop", "id": ...}, an order not begun yet; {"go": true}, the answer to an epoch or a report
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
"""How frameworks say that there is no more, in errors of no special type."""
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
MEMORY, PEER, DIVERGED, MISTAKE, DISK, ERROR = "memory", "peer", "diverged", "mistake", "disk", "error"
"""Kinds of failures; a peer's is known better by the peer, and a disk's is none of the trial's."""


class TrialRunner(ABC):
    """What this process can do for a study: train parts of trials, or call an objective."""

    leaves_files: ClassVar[bool] = True
    """Whether a trial has more in its folder than what it has said."""

    @abstractmethod
    def load(self) -> None:
        """Local, blocking: what workers on one machine can share. Starts no thread."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Local, blocking: what the coordinator must know before the first trial."""

    @abstractmethod
    def run(self, command: Message, messages: MessageQueue) -> dict[str, Any]:
        """Blocking: one piece of work; what comes back goes to the coordinator."""


def serve_trials(runner: TrialRunner, channel: Channel) -> None:
    """Local, blocking: until the other end is gone."""
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
    try:
        return {"is": "done", **runner.run(command, messages)}
    except BaseException as error:  # noqa: BLE001 - whatever a trial raises is a result, and the block goes on
        if not isinstance(error, (UsageError, TrainingFailed, Dropped)):
            traceback.print_exc()
        kind, reason = classify_failure(error)
        print(reason, file=sys.stderr, flush=True)
        return {"is": "failed", "kind": kind, "reason": reason}


def _is_disk_error(error: BaseException | None) -> bool:
    """Pure: whether nothing could be written, or that was the cause."""
    while error is not None:
        if isinstance(error, CannotWrite) or (isinstance(error, OSError) and error.errno in NO_SPACE):
            return True
        error = error.__cause__
    return False


def classify_failure(error: BaseException) -> tuple[str, str]:
    """Pure: what a failure was, in a word and in a sentence."""
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
