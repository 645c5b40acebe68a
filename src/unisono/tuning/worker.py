"""A process that works at trials, one after the other, until it is told to end or somebody kills it. A supervisor has it as a
child, so whatever a trial does to it, the study goes on.

    in   {"do": "train", ...} or {"do": "call", ...}; {"go": true}, the answer to an epoch or a report
    out  {"is": "ready"}; {"is": "epoch", ...}; {"is": "done", ...}; {"is": "failed", "kind": ..., "reason": ...}
"""

from __future__ import annotations

import os
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import Any

from unisono.comm.control_plane.channel import Channel
from unisono.errors import AlreadyTold, CommError, TrainingFailed, UsageError
from unisono.tuning.letters import Letter, post, wait_for

MEMORY_WORDS = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")
"""How frameworks say that there is no more, in errors of no special type."""
MEMORY, PEER, DIVERGED, MISTAKE, ERROR = "memory", "peer", "diverged", "mistake", "error"
"""Kinds of failures; a peer's is known better by the peer."""


class Work(ABC):
    """What this process can do for a study: train parts of trials, or call an objective."""

    @abstractmethod
    def load(self) -> None:
        """Local, blocking: what workers on one machine can share. Starts no thread."""

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """Local, blocking: what the coordinator must know before the first trial."""

    @abstractmethod
    def do(self, letter: Letter, channel: Channel) -> dict[str, Any]:
        """Blocking: one piece of work; what comes back goes to the coordinator."""


def live(work: Work, channel: Channel) -> None:
    """Local, blocking: until the other end is gone."""
    post(channel, {"is": "ready", "pid": os.getpid()})
    while True:
        try:
            letter = wait_for(channel)
        except (EOFError, OSError):
            return
        began = perf_counter()
        with said_in(Path(letter["output"]), letter.get("at", {}).get("world_size", 1) == 1):
            told = _done(work, letter, channel)
        post(channel, {**told, "id": letter["id"], "took_s": perf_counter() - began})


def _done(work: Work, letter: Letter, channel: Channel) -> dict[str, Any]:
    try:
        return {"is": "done", **work.do(letter, channel)}
    except BaseException as error:  # noqa: BLE001 - whatever a trial raises is a result, and the block goes on
        if not isinstance(error, (UsageError, TrainingFailed)):
            traceback.print_exc()
        kind, reason = kind_of(error)
        print(reason, file=sys.stderr, flush=True)
        return {"is": "failed", "kind": kind, "reason": reason}


def kind_of(error: BaseException) -> tuple[str, str]:
    """Pure: what a failure was, in a word and in a sentence."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, MemoryError) or (
        isinstance(error, (RuntimeError, OSError)) and any(word in str(error).lower() for word in MEMORY_WORDS)
    ):
        return MEMORY, f"out of memory ({text})"
    if isinstance(error, (CommError, AlreadyTold)):
        return PEER, text
    if isinstance(error, TrainingFailed):
        return DIVERGED, str(error)
    if isinstance(error, UsageError):
        return MISTAKE, str(error)
    return ERROR, text


@contextmanager
def said_in(file: Path, is_alone: bool = True) -> Iterator[None]:
    """Local: what is printed meanwhile, also by libraries, goes to the end of a file, which goes again if it is empty and ours."""
    kept = []
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        target = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError:
        target = os.open(os.devnull, os.O_WRONLY)  # the journal will say why, where it matters
    for descriptor in (1, 2):
        kept.append(os.dup(descriptor))
        os.dup2(target, descriptor)
    os.close(target)
    try:
        yield
    finally:
        for descriptor, before in zip((1, 2), kept, strict=True):
            (sys.stdout if descriptor == 1 else sys.stderr).flush()
            os.dup2(before, descriptor)
            os.close(before)
        with suppress(OSError):  # a folder for each trial that has said nothing would be in the way
            if is_alone and not file.stat().st_size:
                file.unlink()
                file.parent.rmdir()
