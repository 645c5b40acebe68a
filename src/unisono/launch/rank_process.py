"""One rank as the launcher sees it: a process that leads its own group, its exit, and the processes it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO

from unisono.launch.output import RankOutput


class RankProcess:
    """A started rank. All methods are local and none blocks."""

    def __init__(self, rank: int, process: subprocess.Popen[bytes], output: RankOutput) -> None:
        self.rank = rank
        self.pid = process.pid
        self.output = output
        self.code: int | None = None
        """Exit code as the shell gives it: 128 + signal for a process that was killed."""
        self.finished = False
        """Whether nothing of its group is left and its output was taken."""
        self._process = process

    def close(self) -> None:
        """Local: closes its outputs and its input."""
        self.output.close()
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()

    @property
    def running(self) -> bool:
        """Whether the rank has not exited yet."""
        return self.code is None

    @property
    def killed_by(self) -> int | None:
        """Number of the signal that killed the rank; None if it runs or exited by itself."""
        returncode = self._process.returncode
        return -returncode if returncode is not None and returncode < 0 else None

    def describe_exit(self) -> str:
        """Returns how the rank ended, for messages: its exit code or signal."""
        if self.killed_by is None:
            return f"rank {self.rank} exited with code {self.code}"
        try:
            name = f" ({signal.Signals(self.killed_by).name})"
        except ValueError:  # real-time signals have no name
            name = ""
        return f"rank {self.rank} was killed by signal {self.killed_by}{name}"

    def reap(self) -> bool:
        """Collects the exit code of the rank; returns whether it has exited since the last call. `code` is set then."""
        if not self.running or self._process.poll() is None:
            return False
        self.code = self._process.returncode if self.killed_by is None else 128 + self.killed_by
        return True

    def has_live_group(self) -> bool:
        """Whether processes of its group still run after its own exit. Orphans of the group that have ended are reaped."""
        try:
            while os.waitpid(-self.pid, os.WNOHANG) != (0, 0):
                continue
        except ChildProcessError:
            pass
        return self.send_to_group(0)

    def send(self, signum: int) -> None:
        """Sends a signal to the rank alone: its children may not expect it (a worker of a data loader dies of SIGUSR1)."""
        if self.running:
            self._process.send_signal(signum)

    def send_to_group(self, signum: int) -> bool:
        """Sends a signal to the rank and all its children, as a terminal does; returns whether there was a process to receive
        it."""
        try:
            os.killpg(self.pid, signum)
        except (ProcessLookupError, PermissionError):  # nobody, or nobody who can be reached
            return False
        return True


def start_process(
    command: Sequence[str], env: Mapping[str, str], stdin: int | None, prepare: Callable[[], None]
) -> tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]]:
    """Local: starts a process and returns it with its two outputs. It has its own session: signals of the terminal reach it
    through us only."""
    process = subprocess.Popen(
        command,
        env=env,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
        preexec_fn=prepare,
    )
    assert process.stdout is not None and process.stderr is not None
    return process, process.stdout, process.stderr
