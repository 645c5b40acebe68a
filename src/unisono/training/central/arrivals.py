"""The order in which an asynchronous run came about, and how it is repeated.

What a worker computes is a function of the replies it has got, and what the server replies a function of the calls before; so the
order of calls, of losses and of the decisions to stop is all that chance has decided. It is written down, one line each:

    3            a call of worker 3 was served: it joined, or had done its batches
    lost 3       worker 3 was counted as dead
    stop WHY     nothing was dealt out any more
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from unisono.comm.exchange import Numbers, Request, Server
from unisono.errors import UsageError

FILE = "arrivals.txt"
LOST, STOP = "lost ", "stop "


class Arrivals:
    """Writes the order down. Local, of the server."""

    def __init__(self, path: Path, num_lines: int = 0) -> None:
        """`num_lines` of an earlier life are kept: those before the state that it goes on from. That it stopped then is no longer
        true."""
        kept = path.read_text().splitlines()[:num_lines] if num_lines else []
        if len(kept) < num_lines:
            raise UsageError(f"{path} has {len(kept)} of the {num_lines} lines that the checkpoint knows; start over with --fresh")
        kept = [line for line in kept if not line.startswith(STOP)]
        self.num_lines = len(kept)
        self._file: IO[str] = path.open("w")
        self._file.writelines(f"{line}\n" for line in kept)

    def write(self, line: str) -> None:
        """Local."""
        self._file.write(f"{line}\n")
        self.num_lines += 1

    def flush(self) -> None:
        """Local: what was written is there for a reader, and for another life."""
        self._file.flush()

    def close(self) -> None:
        """Local. Idempotent."""
        self._file.close()


def read_arrivals(path: Path) -> list[str]:
    """Local: the lines of a record, each checked."""
    if path.is_dir():
        path = path / FILE
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        raise UsageError(f"there is no {path} to repeat (--replay); give the directory of an asynchronous run") from None
    for number, line in enumerate(lines, 1):
        if not (line.removeprefix(LOST).isdigit() or line.startswith(STOP)):
            raise UsageError(f"{path}: line {number} is {line[:40]!r}, which no run writes; the file is damaged")
    return lines


class InOrder(Server):
    """Another server's calls in a recorded order; calls that come too early wait."""

    def __init__(self, server: Server, lines: Sequence[str], is_recorded: Callable[[Request], bool]) -> None:
        """`is_recorded`: whether a call has a line of its own; others change nothing and are served at once."""
        self._server = server
        self._is_recorded = is_recorded
        self._lines = deque(lines)
        self._early: dict[int, Request] = {}
        self._lost: list[int] = []

    def decision(self) -> str | None:
        """Local: why the run is to stop here; None if the record says no such thing at this place."""
        if self._lines and self._lines[0].startswith(STOP):
            return self._lines.popleft().removeprefix(STOP)
        return None

    def receive(self, timeout_s: float | None = None) -> Request | None:
        while self._lines and self._lines[0].startswith(LOST):
            self._lost.append(int(self._lines.popleft().removeprefix(LOST)))
        if self._lost:
            return None
        if self._lines and not self._lines[0].isdigit():
            return None
        if not self._lines:
            return self._server.receive(timeout_s)
        wanted = int(self._lines[0])
        while wanted not in self._early:
            request = self._server.receive(timeout_s)
            if request is None:
                return None
            if not self._is_recorded(request):
                return request
            self._early[request.caller] = request
        self._lines.popleft()
        return self._early.pop(wanted)

    def room(self, caller: int, numel: int, dtype: torch.dtype) -> Tensor:
        return self._server.room(caller, numel, dtype)

    def reply(self, caller: int, kind: int, vector: Tensor | None = None, tail: Sequence[float] | Numbers = ()) -> None:
        self._server.reply(caller, kind, vector, tail)

    def lost(self) -> Sequence[int]:
        found, self._lost = self._lost, []
        return found

    def close(self) -> None:
        self._server.close()
