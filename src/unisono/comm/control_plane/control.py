"""The control plane that all engines share: liveness of ranks, exchange of small objects, and reports of what a rank does.

Engines move tensors; they cannot reliably tell which rank died (gloo and MPI name the wrong one). So each process of a job holds
one `Control`. Ranks here are global: a `Control` spans the whole job, whatever groups are split from it.
"""

from __future__ import annotations

import sys
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unisono.comm.control_plane.job_pass import Pass

LEFT = "has left: it closed its communicator"
"""The reason of a rank that left cleanly."""


@dataclass(frozen=True)
class Loss:
    """The loss of a rank: its reason, and the ranks that caused it (`causes` is empty if it failed by itself)."""

    reason: str
    causes: tuple[int, ...] = ()
    done: Mapping[str, int] = field(default_factory=dict)
    """For a rank that left cleanly: group name -> number of the newest collective; it finished that one and all before."""

    @property
    def left_cleanly(self) -> bool:
        """Whether the rank had finished all its calls, so that its part of the current one may still arrive."""
        return self.reason == LEFT


@dataclass(frozen=True)
class CurrentCall:
    """The newest collective that a rank entered in one group."""

    seq: int
    call: str


@dataclass(frozen=True)
class Report:
    """A live rank's report of what it does: its current calls and its stack."""

    current_calls: dict[str, CurrentCall]
    stack: str


class Control(ABC):
    """Liveness and exchange of small objects between all processes of a job. Thread-safe, as every communicator of a process
    shares it."""

    rank: int
    size: int

    def __init__(self, rank: int, size: int, own_pass: Pass) -> None:
        self.rank = rank
        self.size = size
        self.own_pass = own_pass
        """What this process knows of its job: seals what is to be unpickled."""
        self.lost: dict[int, Loss] = {}
        """Lost ranks, filled by another thread: a waiting loop only reads it. Insertion order is order of loss."""
        self.current_calls: dict[str, tuple[int, object]] = {}
        """group name -> (number of the newest collective, what it is): read when somebody asks for a report."""

    @abstractmethod
    def exchange(self, key: str, members: Sequence[int], obj: Any, timeout_s: float) -> list[Any]:
        """Collective over `members`, blocking: returns the `obj` (plain data) of every member in the order of `members`.

        `key` must be the same on all members and never be used twice. Raises `PeerLost` or `CollectiveTimeout` with global ranks.
        """

    @abstractmethod
    def reports(self, members: Sequence[int], timeout_s: float) -> dict[int, Report]:
        """Local, blocking: returns the report of each live member; members that do not answer in time are left out."""

    @abstractmethod
    def give_up(self, reason: str, causes: Sequence[int] = ()) -> None:
        """Local, not blocking: notifies all others that this rank gives up, and because of which ranks."""

    @abstractmethod
    def close(self) -> None:
        """Local: leaves the job cleanly. Idempotent."""

    def done(self) -> dict[str, int]:
        """Local: returns the newest collective of each group, where this rank has finished all; sent when it leaves cleanly."""
        return {name: seq for name, (seq, _) in tuple(self.current_calls.items())}

    def own_report(self, thread: int | None = None) -> Report:
        """Returns this process's own report. `thread` restricts the stack to one thread (for ranks that are threads)."""
        doing = {name: CurrentCall(seq, str(call)) for name, (seq, call) in tuple(self.current_calls.items())}
        return Report(doing, _stacks_of_threads(thread))


def _stacks_of_threads(only: int | None) -> str:
    """Returns the stacks of all threads of this process as text, or of the thread `only`."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        if only is None or ident == only:
            parts.append(f"thread {names.get(ident, ident)}:\n" + "".join(traceback.format_stack(frame)))
    return "\n".join(parts)
