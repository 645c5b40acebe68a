"""The control plane of ranks that are threads of one process: one table that all of them see."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from time import monotonic
from typing import Any

from unisono.comm.control_plane.control import LEFT, Control, Loss, Report
from unisono.comm.control_plane.job_pass import Pass
from unisono.comm.control_plane.plain import decode, encode
from unisono.errors import CollectiveTimeout, PeerLost, join_ranks

SLICE_S = 0.1
"""Longest sleep of a waiting rank before it checks for lost ranks and its time limit."""


class ThreadJob:
    """The shared state of all ranks of a job."""

    def __init__(self, size: int) -> None:
        self.changed = threading.Condition()
        """Guards everything that ranks share; every change wakes all of them, which is slow with many ranks but simple."""
        self.controls = [ThreadControl(rank, size, self) for rank in range(size)]
        self.exchanges: dict[str, dict[int, bytes]] = {}

    def lose(self, rank: int, loss: Loss) -> None:
        """Reports a lost rank to all others; the first reported reason stays."""
        with self.changed:
            for control in self.controls:
                if control.rank != rank:
                    control.lost.setdefault(rank, loss)
            self.changed.notify_all()


class ThreadControl(Control):
    """One rank's side of a `ThreadJob`."""

    def __init__(self, rank: int, size: int, job: ThreadJob) -> None:
        super().__init__(rank, size, Pass(secrets.token_hex(16)))
        self.thread: int | None = None
        """Identity of the thread that is this rank, for its stack."""
        self._job = job
        self._closed = False

    def exchange(self, key: str, members: Sequence[int], obj: Any, timeout_s: float) -> list[Any]:
        deadline = monotonic() + timeout_s
        job = self._job
        with job.changed:
            there = job.exchanges.setdefault(key, {})
            there[self.rank] = encode(obj)
            job.changed.notify_all()
            while missing := [member for member in members if member not in there]:
                where = f"exchange {key!r} on rank {self.rank} cannot finish"
                if lost := [member for member in missing if member in self.lost]:
                    why = "; ".join(f"rank {member} {self.lost[member].reason}" for member in lost)
                    raise PeerLost(lost, f"{where}: {why}")
                if monotonic() > deadline:
                    late = f"{join_ranks(missing)} did not arrive within {timeout_s:g} s"
                    raise CollectiveTimeout(missing, f"{where}: {late}")
                job.changed.wait(SLICE_S)
            job.exchanges.pop(key, None)  # those who have not woken up yet hold `there` themselves
        return [decode(there[member]) for member in members]

    def reports(self, members: Sequence[int], timeout_s: float) -> dict[int, Report]:  # noqa: ARG002 -- all answer at once
        living = [self._job.controls[member] for member in members if member not in self.lost]
        return {control.rank: control.own_report(control.thread) for control in living}

    def give_up(self, reason: str, causes: Sequence[int] = ()) -> None:
        self._job.lose(self.rank, Loss(reason, tuple(causes)))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._job.lose(self.rank, Loss(LEFT, done=self.done()))
