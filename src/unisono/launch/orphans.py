"""Ensures that no process of the ranks outlives the launcher: the kernel kills the ranks with it, a watchdog ends their orphans."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from types import TracebackType

from unisono.cluster.machine.process_tree import Process, processes, with_descendants

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_GET_CHILD_SUBREAPER = 37

WATCHDOG_PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from unisono.launch.watchdog import main; main(int(sys.argv[2]))"
"""Arguments that start the watchdog. It imports only Python and this package, as it must start quickly."""


def prctl() -> Callable[..., int] | None:
    """Local: returns the system call `prctl`; None where there is none (macOS: there is only the watchdog)."""
    if not sys.platform.startswith("linux"):
        return None
    function = ctypes.CDLL(None, use_errno=True).prctl
    function.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong)
    function.restype = ctypes.c_int
    call: Callable[..., int] = function
    return call


def preexec_of_rank(mask: Iterable[int], cpus: Collection[int] | None = None) -> Callable[[], None]:
    """Local: returns the `preexec_fn` of a rank, with which it has the signal mask, dies with the launcher, and stays on its CPUs
    (None: on any).

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
            if os.getppid() != launcher:  # it died before the kernel watched it
                os._exit(1)
        if cpus is not None:
            os.sched_setaffinity(0, cpus)

    return prepare


def sigterm_if_torchrun_ends(launcher: str) -> None:
    """Local, in a rank: under torchrun, lets the end of our parent send us SIGTERM, as a killed torchrun leaves its workers
    running (SIGUSR1 does so). Other launchers end their ranks themselves, and a single process may outlive the shell that
    started it."""
    if launcher == "torchrun":
        sigterm_if_parent_ends()


def sigterm_if_parent_ends() -> None:
    """Local: from now on the end of our parent process sends us SIGTERM, also after an exec."""
    call = prctl()
    if call is not None:
        call(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)


class OrphanGuard:
    """A context in which ranks are started and which leaves no process of them behind. Local; entering starts the watchdog,
    leaving waits for its end."""

    def __init__(self, base: Mapping[str, str]) -> None:
        """`base` is the environment of this process."""
        # A launcher inside a rank has the marks of that rank, but its watchdog must outlive it.
        self._watchdog_env = {name: value for name, value in base.items() if not name.startswith("UNISONO_")}
        self._call = prctl()
        self._was_subreaper = 0
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._other_children: frozenset[Process] = frozenset()
        self._other_sessions: frozenset[int] = frozenset()

    def __enter__(self) -> OrphanGuard:
        if self._call is not None:
            before = ctypes.c_int(0)
            self._call(PR_GET_CHILD_SUBREAPER, ctypes.addressof(before), 0, 0, 0)
            self._was_subreaper = before.value
            # Orphans of the ranks become our children, so that we find them and their end wakes us.
            self._call(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._watchdog = subprocess.Popen(
            (sys.executable, "-I", "-S", "-c", WATCHDOG_PROGRAM, str(Path(__file__).parents[2]), str(os.getpid())),
            env=self._watchdog_env,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
            preexec_fn=_ignore_stop_signals,
        )
        table = processes()
        ours = [one for one in table.values() if one.parent == os.getpid()]
        self._other_children = frozenset(ours)
        # Their own children may come to us as orphans later; those stay in the session of their parents.
        self._other_sessions = frozenset(one.session for one in with_descendants(table, ours))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._watchdog is not None and self._watchdog.stdin is not None
        self._watchdog.stdin.close()
        self._watchdog.wait()
        if self._call is not None:
            self._call(PR_SET_CHILD_SUBREAPER, self._was_subreaper, 0, 0, 0)

    def mark_variable(self, name: str, value: str) -> None:
        """Local: notes a variable that all ranks have; only they and their descendants have all marked variables."""
        self._send_line(f"{name}={value}\n")

    def add_group(self, group: int) -> None:
        """Local: adds a process group that dies with the launcher."""
        self._send_line(f"{group}\n")

    def forget_groups(self) -> None:
        """Local: removes all groups, which have ended: the system may reuse their numbers."""
        self._send_line("\n")

    def leftovers(self) -> list[Process]:
        """Local: returns the processes that the ranks have left running, in any session, once the ranks have ended. A
        process of a rank is never in our session, and becomes our child when its parent ends.
        """
        table, own = processes(), os.getpid()
        if own not in table:
            return []
        foreign = {table[own].session, *self._other_sessions}
        adopted = (one for one in table.values() if one.parent == own and one.session not in foreign)
        of_ranks = [one for one in adopted if one not in self._other_children and not _reap(one)]
        return [one for one in with_descendants(table, of_ranks) if not one.ended]

    def _send_line(self, line: str) -> None:
        """Sends a line to the watchdog process; does nothing if it has been killed."""
        assert self._watchdog is not None and self._watchdog.stdin is not None
        try:
            self._watchdog.stdin.write(line.encode())
        except BrokenPipeError:  # the watchdog was killed; the kernel still ends the ranks with us
            return


def _ignore_stop_signals() -> None:
    """Ignores stop signals in the watchdog: a scheduler that ends all processes of a job must not end it first, not even at its
    start."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)


def _reap(process: Process) -> bool:
    """Collects the exit code of an orphan, as nothing else waits for it; returns whether it had ended."""
    return process.ended and os.waitpid(process.pid, os.WNOHANG) != (0, 0)
