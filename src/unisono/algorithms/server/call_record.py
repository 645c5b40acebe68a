"""The recorded order of calls of an asynchronous run, and how a run repeats it.

What a worker computes is a function of the replies it has got, and a reply is a function of the calls before it; so the order of
calls, of losses and of the decisions to stop is all that chance has decided. It is recorded, one line each:

    3            a call of worker 3 was served: it joined, or had done its batches
    lost 3       worker 3 was counted as dead
    stop WHY     no more work was assigned; not in the record of a run that was resumed
    anew WHY     the run continued in another way than the lines before say, so it cannot be repeated
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from unisono.comm.exchange.base import Numbers, Request, Server
from unisono.errors import TrainingFailed, UsageError
from unisono.files.atomic import atomic_replacement

FILE = "arrivals.txt"
LOST, STOP, REPLAY_BREAK = "lost ", "stop ", "anew "
MOST_SILENCES = 3
"""Receives without a call, while nothing is answered, after which virtual workers will never call again."""


class CallRecorder:
    """Writes the order of calls to a file. Local to the server."""

    def __init__(self, path: Path, num_lines: int = 0, why_not_replayable: str = "") -> None:
        """`num_lines` lines of an earlier attempt are kept: those before the state that is resumed. Lines that say why it stopped
        are removed. `why_not_replayable`: why the calls from now on cannot be repeated after those lines."""
        kept = [line for line in path.read_text().splitlines() if not line.startswith(STOP)] if path.exists() else []
        if len(kept) < num_lines:
            why_not_replayable = why_not_replayable or f"{num_lines - len(kept)} lines before this one are missing"
        del kept[num_lines:]
        self.num_lines = len(kept)
        """Number of lines in the file, without those that say why the run stopped."""
        with atomic_replacement(path) as draft:  # another attempt may need them, should this one end before it has saved
            draft.write_text("".join(f"{line}\n" for line in kept))
        self._file: IO[str] = path.open("a")
        if why_not_replayable:
            self.write(f"{REPLAY_BREAK}{why_not_replayable}")

    def write(self, line: str) -> None:
        """Local: adds a line."""
        self._file.write(f"{line}\n")
        self.num_lines += not line.startswith(STOP)

    def flush(self) -> None:
        """Local: makes all lines visible to readers and to another attempt."""
        self._file.flush()

    def close(self) -> None:
        """Local. Idempotent."""
        self._file.close()


def read_call_record(path: Path) -> list[str]:
    """Local: reads and checks the lines of a record, the file or the run directory that holds it."""
    if path.is_dir():
        path = path / FILE
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        raise UsageError(f"there is no {path} (--replay); give the directory of an asynchronous run") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read (--replay): {error}") from error
    for number, line in enumerate(lines, 1):
        if line.startswith(REPLAY_BREAK):
            why = line.removeprefix(REPLAY_BREAK)
            raise UsageError(
                f"the recorded run cannot be repeated (--replay): {why} ({path}, line {number}); give a run that was not "
                "resumed, or resumed with the same workers and batches"
            )
        if not (line.removeprefix(LOST).isdecimal() or line.startswith(STOP)):
            raise UsageError(
                f"{path} (--replay) is damaged: no run writes a line like {line[:40]!r} (line {number}); copy it again, or give "
                "another run"
            )
    if not lines:
        raise UsageError(f"{path} is empty (--replay): no worker of that run ever called the server; give another run")
    return lines


def check_numbers(lines: Sequence[str], num_workers: int) -> None:
    """Pure: refuses a record of another number of workers, which would wait for each other for ever."""
    if any(line.startswith(LOST) for line in lines):
        raise UsageError(
            "workers joined and left the run to repeat (--replay); give the same --elastic W, and this process simulates "
            "all of them"
        )
    found = max(int(line.removeprefix(LOST)) for line in lines if not line.startswith(STOP)) + 1
    if found != num_workers:
        raise UsageError(
            f"the run to repeat (--replay) had {found} workers, this one has {num_workers}; start {found} workers, with the same "
            "settings"
        )


def callers_in(lines: Sequence[str]) -> set[int]:
    """Pure: the numbers of the workers that call in a record, or in the rest of one."""
    return {int(line) for line in lines if line.isdecimal()}


def after(lines: Sequence[str], num_lines: int) -> Sequence[str]:
    """Pure: the rest of a record after `num_lines` lines, not counting those that say why it stopped."""
    left = num_lines
    for number, line in enumerate(lines):
        if not left:
            return lines[number:]
        left -= not line.startswith(STOP)
    return ()


class ReplayServer(Server):
    """Gives the calls of another server in a recorded order; calls that come too early wait."""

    def __init__(
        self,
        server: Server,
        lines: Sequence[str],
        is_recorded: Callable[[Request], bool],
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_recorded`: whether a call has a line in the record; others change nothing and are served at once. The record is
        followed once `is_ready` is true."""
        self._server = server
        self._is_ready = is_ready
        self._num_silences = 0
        self._is_recorded = is_recorded
        self._lines = deque(lines)
        self._early: dict[int, Request] = {}
        self._lost: list[int] = []
        self._gone: set[int] = set()
        """Workers that were lost; their later calls are dropped."""
        self.is_past_end = False
        """Whether a call came after all that were recorded."""

    def decision(self) -> str | None:
        """Local: the reason to stop that the record has at this place; None if the run continues."""
        if self._is_ready() and self._lines and self._lines[0].startswith(STOP):
            return self._lines.popleft().removeprefix(STOP)
        return None

    def lets_save(self, busy: Collection[int]) -> bool:
        """Local: whether each of these workers calls next, before one of them calls again: a save answers no worker until all have
        called, so in another order it would wait for ever."""
        missing, seen = set(busy), set[int]()
        for line in self._lines:
            if not missing:
                return True
            if not line.isdecimal() or int(line) in seen:
                return False
            seen.add(int(line))
            missing.discard(int(line))
        return True

    def give_up(self) -> None:
        """Local: drops the rest of the record: from now on calls are served as they come."""
        self._lines.clear()

    def receive(self, timeout_s: float | None = None) -> Request | None:
        if not self._is_ready():
            request = self._receive_next(timeout_s)
            if request is None or not self._is_recorded(request):
                return request
            self._early[request.caller] = request
            return None
        while self._lines and self._lines[0].startswith(LOST):
            gone = int(self._lines.popleft().removeprefix(LOST))
            self._early.pop(gone, None)
            self._gone.add(gone)
            self._lost.append(gone)
        if self._lost:
            return None
        if self._lines and not self._lines[0].isdecimal():
            return None
        if not self._lines:
            request = self._early.pop(next(iter(self._early))) if self._early else self._receive_next(timeout_s)
            self.is_past_end = self.is_past_end or (request is not None and self._is_recorded(request))
            return request
        wanted = int(self._lines[0])
        while wanted not in self._early:
            request = self._receive_next(timeout_s)
            if request is None:
                return None
            if not self._is_recorded(request):
                return request
            self._early[request.caller] = request
        self._lines.popleft()
        return self._early.pop(wanted)

    def _receive_next(self, timeout_s: float | None) -> Request | None:
        """The next call of a worker that is not lost."""
        request = self._server.receive(timeout_s)
        while request is not None and request.caller in self._gone:
            request = self._server.receive(timeout_s)
        self._num_silences = self._num_silences + 1 if request is None and self._server.all_await_replies() else 0
        if self._num_silences > MOST_SILENCES:
            where = (
                f"worker {self._lines[0]} is next, but no longer calls"
                if self._lines
                else "it has no more calls, and no worker calls"
            )
            raise TrainingFailed(
                f"the recorded order (--replay) does not lead to the end of the run: {where} the server. The record is of another "
                "experiment, or of a run that was killed; give another run"
            )
        return request

    def buffer(self, caller: int, numel: int, dtype: torch.dtype) -> Tensor:
        return self._server.buffer(caller, numel, dtype)

    def reply(self, caller: int, kind: int, vector: Tensor | None = None, tail: Sequence[float] | Numbers = ()) -> None:
        self._num_silences = 0
        self._server.reply(caller, kind, vector, tail)

    def newly_lost(self) -> Sequence[int]:
        """As in the interface, but by the record, not by the network."""
        found, self._lost = self._lost, []
        return found

    def close(self) -> None:
        self._server.close()
