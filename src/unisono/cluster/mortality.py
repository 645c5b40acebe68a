"""Nothing outlives the launcher: the kernel kills the ranks with it, a guard ends what they leave, orphans come to us."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from types import TracebackType

from unisono.cluster.descent import Process, below, processes

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_GET_CHILD_SUBREAPER = 37

GUARD = "import sys; sys.path.insert(0, sys.argv[1]); from unisono.cluster.guard import main; main(int(sys.argv[2]))"
"""Nothing but Python and this package: it must be there in a moment."""


def prctl() -> Callable[..., int] | None:
    """The kernel's call for both duties; None where there is none (macOS: the guard alone must do)."""
    if not sys.platform.startswith("linux"):
        return None
    function = ctypes.CDLL(None, use_errno=True).prctl
    function.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong)
    function.restype = ctypes.c_int
    call: Callable[..., int] = function
    return call


def before_exec(mask: Iterable[int], cpus: Collection[int] | None = None) -> Callable[[], None]:
    """What a rank does between fork and exec: leave the launcher's signals alone, bind its life to the launcher's, and stay on
    its CPUs (None: on any).

    Everything is looked up here, before the fork. Start ranks from the main thread: the kernel watches the thread that forked.
    """
    launcher = os.getpid()
    call = prctl()
    signals = frozenset(mask)

    def prepare() -> None:
        # A signal that comes now must not be noted through the launcher's wake-up pipe, or it would count twice.
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        if call is not None:
            call(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != launcher:  # it died before the kernel was told to watch
                os._exit(1)
        if cpus is not None:
            os.sched_setaffinity(0, cpus)

    return prepare


def stop_with_torchrun(launcher: str) -> None:
    """Local, in a rank: under torchrun, which leaves its workers to themselves when it is killed (SIGUSR1 does so), the end of our
    parent is a SIGTERM to us. Other launchers see to it; and one process alone may outlive the shell that started it."""
    if launcher == "torchrun":
        stop_with_parent()


def stop_with_parent() -> None:
    """Local: the end of our parent is a SIGTERM to us from now on, also for the program that this process becomes."""
    call = prctl()
    if call is not None:
        call(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)


class Mortality:
    """A context in which ranks are started. Local; entering starts the guard, leaving waits for its end."""

    def __init__(self, base: Mapping[str, str]) -> None:
        """`base` is the environment of this process."""
        # A launcher inside a rank has the marks of that rank, but its guard must outlive it.
        self._guard_env = {name: value for name, value in base.items() if not name.startswith("UNISONO_")}
        self._call = prctl()
        self._was_reaper = 0
        self._guard: subprocess.Popen[bytes] | None = None
        self._not_of_ranks: frozenset[Process] = frozenset()
        self._sessions_before: frozenset[int] = frozenset()

    def __enter__(self) -> Mortality:
        if self._call is not None:
            before = ctypes.c_int(0)
            self._call(PR_GET_CHILD_SUBREAPER, ctypes.addressof(before), 0, 0, 0)
            self._was_reaper = before.value
            # What ranks leave behind becomes ours, so that we find it and its end wakes us.
            self._call(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._guard = subprocess.Popen(
            (sys.executable, "-I", "-S", "-c", GUARD, str(Path(__file__).parents[2]), str(os.getpid())),
            env=self._guard_env,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
            preexec_fn=_deafen,
        )
        table = processes()
        ours = [one for one in table.values() if one.parent == os.getpid()]
        self._not_of_ranks = frozenset(ours)
        # Their own children may come to us as orphans later; those stay in the session of their parents.
        self._sessions_before = frozenset(one.session for one in below(table, ours))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._guard is not None and self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait()
        if self._call is not None:
            self._call(PR_SET_CHILD_SUBREAPER, self._was_reaper, 0, 0, 0)

    def mark(self, name: str, value: str) -> None:
        """Local: ranks have this variable from now on, and no process but them and their descendants has all that are marked."""
        self._tell(f"{name}={value}\n")

    def add(self, group: int) -> None:
        """Local: this process group dies with the launcher from now on."""
        self._tell(f"{group}\n")

    def clear(self) -> None:
        """Local: all groups have ended; their numbers may now be given to others."""
        self._tell("\n")

    def leftovers(self) -> list[Process]:
        """Local: what lives of the ranks' descendants, in whichever session, once the ranks themselves have ended.

        A process of a rank is never in our session, and becomes our child when its parent ends.
        """
        table, own = processes(), os.getpid()
        if own not in table:
            return []
        foreign = {table[own].session, *self._sessions_before}
        adopted = (one for one in table.values() if one.parent == own and one.session not in foreign)
        of_ranks = [one for one in adopted if one not in self._not_of_ranks and not _reaped(one)]
        return [one for one in below(table, of_ranks) if not one.ended]

    def _tell(self, line: str) -> None:
        assert self._guard is not None and self._guard.stdin is not None
        try:
            self._guard.stdin.write(line.encode())
        except BrokenPipeError:  # somebody killed the guard; the kernel still ends the ranks with us
            return


def _deafen() -> None:
    """A scheduler that ends all processes of a job must not end the guard first, not even while it starts."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)


def _reaped(process: Process) -> bool:
    """Whether it had ended; nobody else asks for the exit code of an orphan."""
    return process.ended and os.waitpid(process.pid, os.WNOHANG) != (0, 0)
