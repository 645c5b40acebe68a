"""Starts one launcher on each of several hosts, forwards their output and our signals, and ends them all when one fails."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import IO

from unisono.cluster.resolve import environment
from unisono.errors import STOPPED_CODE, UsageError
from unisono.launch.control_messages import SIGNAL_RECEIVED, ControlInput, parse_failure_report
from unisono.launch.last_lines import exit_code_of_lost_output, flush_output
from unisono.launch.orphans import preexec_of_rank
from unisono.launch.output import LauncherOutput, Stream
from unisono.launch.output_sink import Sink
from unisono.launch.rank_process import start_process
from unisono.launch.signals import SignalInbox
from unisono.launch.world import FAILURE_GRACE_S, STOP_GRACE_S, STOP_SIGNALS, TERM_GRACE_S, wait_for_events

SSH_FAILED_CODE = 255
PEER_LOST_CODE = 1
"""Exit code of ranks whose peers are gone, and of uncaught exceptions; any other code is more specific."""
ENDED_BY_US = (PEER_LOST_CODE, 128 + signal.SIGTERM, 128 + signal.SIGKILL)
ACKNOWLEDGE_S = 10.0
"""Time in which a launcher must acknowledge a signal. Its ranks may take longer, to save their state."""
KILL_DELAY_S = 1.0
"""After a second Ctrl-C: time until the launchers' input is closed, which kills their ranks; after the same time again ssh
itself is killed."""


@dataclass(frozen=True)
class HostCommand:
    """The command for one host: a launcher that reads control messages (`control_messages.py`), started here or over ssh."""

    host: str
    argv: tuple[str, ...]
    secret: str = ""
    """Secret of the job: the first line that the launcher reads (`secret_from_stdin`)."""


def run_on_hosts(commands: Sequence[HostCommand], control_stdin: bool) -> int:
    """Local, blocking: runs the commands until all have ended; returns the exit code of the one that failed (`first_cause`), or
    0. Only from the main thread. `control_stdin`: as in `LaunchConfig`."""
    with selectors.DefaultSelector() as selector, SignalInbox(selector) as inbox:
        console = LauncherOutput(selector, colour=False, logged=False)
        if control_stdin:
            ControlInput(selector, inbox)
        hosts: list[_Host] = []
        try:
            for command in commands:
                hosts.append(_start_host(command, selector, inbox, console))
            code = _Watch(hosts, selector, inbox, console).run()
        finally:
            for host in hosts:
                host.close()
        flush_output(selector, inbox, console)
    return code or exit_code_of_lost_output(console.failure)


def first_cause(codes: Sequence[int]) -> int:
    """Pure: returns the first of the codes of failed hosts, in their order, that is no consequence of another failure; 0 for
    none."""
    return next((code for code in codes if code != PEER_LOST_CODE), codes[0] if codes else 0)


@dataclass
class _Reports:
    """The reports of a launcher (`launch/control_messages.py`)."""

    failure: int | None = None
    """The exit code of its first rank that failed; the launcher itself may still run."""
    acknowledged: bool = False
    """Whether a signal has reached it."""

    def read(self, line: bytes) -> bool:
        """Reads a line; returns whether it is a report."""
        code = parse_failure_report(line)
        self.failure = self.failure if code is None else code
        self.acknowledged |= line == SIGNAL_RECEIVED
        return code is not None or line == SIGNAL_RECEIVED


class _Host:
    """A running launcher of one host. Local, not blocking."""

    def __init__(
        self, name: str, process: subprocess.Popen[bytes], control_fd: int, streams: Sequence[Stream], reports: _Reports
    ) -> None:
        self.name = name
        self.reports = reports
        self._process = process
        self._control_fd = control_fd
        self._streams = streams

    def ended(self) -> int | None:
        """Returns the exit code of its ssh, None while it runs; its last lines are forwarded first."""
        code = self._process.poll()
        if code is not None:
            for stream in self._streams:
                stream.drain()
        return None if code is None else code if code >= 0 else 128 - code

    def send_line(self, word: str) -> None:
        """Writes a line to its input: the name of a signal."""
        with suppress(OSError):  # it has ended, or its input has
            os.write(self._control_fd, f"{word}\n".encode())

    def close_control(self) -> None:
        """Closes its input, which ends all processes that it started."""
        if self._control_fd >= 0:
            os.close(self._control_fd)
            self._control_fd = -1

    def kill(self) -> None:
        """Kills ssh itself, not the program on the host."""
        self._process.kill()

    def close(self) -> None:
        """Blocking: closes the input, kills ssh if it still runs, and forwards its last lines."""
        self.close_control()
        if self._process.poll() is None:
            self.kill()
        self._process.wait()
        for stream in self._streams:
            stream.drain()
            stream.close()


def _start_host(command: HostCommand, selector: selectors.BaseSelector, inbox: SignalInbox, console: LauncherOutput) -> _Host:
    """Starts the command of one host, sends it the secret if it has one, and returns it; raises `UsageError` if ssh cannot be
    started.
    """
    reader, writer = os.pipe()
    try:
        with inbox.blocked() as mask:
            process, out, err = start_process(command.argv, environment(), reader, preexec_of_rank(mask))
    except OSError as error:
        os.close(writer)
        raise UsageError(
            f"{command.argv[0]} cannot be started for host {command.host}: {error.strerror}; check that it is on PATH"
        ) from error
    finally:
        os.close(reader)
    reports = _Reports()
    streams = (Stream(selector, out, console.out, b"", None), _ErrorStream(selector, err, console.err, reports))
    host = _Host(command.host, process, writer, streams, reports)
    if command.secret:
        host.send_line(command.secret)
    return host


class _ErrorStream(Stream):
    """Forwards standard error of a launcher, without its reports, which are read here."""

    def __init__(self, selector: selectors.BaseSelector, pipe: IO[bytes], sink: Sink, reports: _Reports) -> None:
        self._reports = reports
        super().__init__(selector, pipe, sink, b"", None)

    def _emit(self, lines: bytes) -> None:
        others = [line for line in lines.splitlines(keepends=True) if not self._reports.read(line.rstrip(b"\n"))]
        if others:
            super()._emit(b"".join(others))


class _Watch:
    """Watches the launchers of all hosts from their start to the end of the last one."""

    def __init__(
        self, hosts: Sequence[_Host], selector: selectors.BaseSelector, inbox: SignalInbox, console: LauncherOutput
    ) -> None:
        self._running = list(hosts)
        self._selector = selector
        self._inbox = inbox
        self._console = console
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self._codes: list[int] = []
        """Exit codes of the hosts that failed by themselves."""
        self._stop_code = 0
        """Exit code of the first signal that requested the end; 0 before."""
        self._num_interrupts = 0
        self._is_ending = False
        self._has_ended_some = False

    def run(self) -> int:
        """Blocking until the commands of all hosts have ended: forwards signals and handles failures. Returns the exit code of the
        run.
        """
        while self._running:
            wait_for_events(self._selector, min((when for when, _ in self._timers), default=None))
            for signum in self._inbox.received():
                self._forward_signal(signum)
            if self._console.failure is not None and not self._is_ending:
                self._end()
            for host in list(self._running):
                code = host.ended()  # its last words are read by then
                failure, host.reports.failure = host.reports.failure, None
                if code is not None:
                    self._running.remove(host)
                if failure is not None:
                    self._note_failure(host, failure, f"a rank of host {host.name} ended with code {failure}")
                if code is not None:
                    self._note_failure(host, code, f"host {host.name} ended with code {code}")
            due = [action for when, action in self._timers if when <= monotonic()]
            self._timers = [timer for timer in self._timers if timer[0] > monotonic()]
            for action in due:
                action()
        return first_cause(self._codes) or (self._stop_code if self._has_ended_some else 0)

    def _forward_signal(self, signum: signal.Signals) -> None:
        """Forwards a signal to all hosts; SIGKILL, or a second Ctrl-C, ends them, and hosts that do not acknowledge a stop are
        killed.
        """
        if signum in (*STOP_SIGNALS, signal.SIGKILL):
            self._stop_code = self._stop_code or 128 + signum
        if signum == signal.SIGKILL:
            self._kill_in(0.0, TERM_GRACE_S)
            return
        if signum in STOP_SIGNALS:
            for host in self._running:  # what it answers now is no answer to a signal before
                host.reports.acknowledged = False
        self._for_each_running(lambda host: host.send_line(signum.name))
        if signum not in STOP_SIGNALS:
            return
        self._num_interrupts += signum == signal.SIGINT
        if self._num_interrupts > 1:
            self._kill_in(KILL_DELAY_S, KILL_DELAY_S)
        elif not self._is_ending:
            self._after(ACKNOWLEDGE_S, self._kill_unresponsive)

    def _kill_unresponsive(self) -> None:
        """Kills the launchers that did not acknowledge a signal, as over a hanging ssh; the others have time to save their
        state."""
        silent = [host for host in self._running if not host.reports.acknowledged]
        if silent:
            self._is_ending = True
            self._kill_hosts(silent)
            self._after(STOP_GRACE_S, self._end)

    def _note_failure(self, host: _Host, code: int, what: str) -> None:
        """Handles an exit code of a host: reports a failure, and at the first one sets the time when the other hosts are ended."""
        if self._is_ending and code in ENDED_BY_US:
            self._has_ended_some = True
            return
        if not code:
            return
        before = first_cause(self._codes)
        self._codes.append(code)
        if first_cause(self._codes) == before or (self._stop_code and code in (PEER_LOST_CODE, self._stop_code)):
            return
        notice_s = STOP_GRACE_S if self._stop_code or code == STOPPED_CODE else FAILURE_GRACE_S
        why = "; check that ssh logs in there without a password: ssh " + host.name if code == SSH_FAILED_CODE else ""
        has_others = any(other is not host for other in self._running) and not before
        self._console.say(f"{what}{why}{f'; the other hosts will be ended in {notice_s:g} s' if has_others else ''}")
        if not before:
            self._after(notice_s, self._end)

    def _end(self) -> None:
        """Sends SIGTERM, then closes the input, which kills the ranks, then kills ssh itself, which may hang on a dead
        connection."""
        self._for_each_running(lambda host: host.send_line(signal.SIGTERM.name))
        self._kill_in(TERM_GRACE_S, TERM_GRACE_S)

    def _kill_in(self, delay_s: float, then_s: float) -> None:
        """Closes the inputs of all hosts after `delay_s`, which ends their ranks, and kills ssh `then_s` later."""
        self._is_ending = True
        self._after(delay_s, lambda: self._for_each_running(_Host.close_control))
        self._after(delay_s + then_s, lambda: self._kill_hosts(self._running))

    def _kill_hosts(self, hosts: Sequence[_Host]) -> None:
        """Kills the ssh of these hosts, with a message that names them."""
        if hosts and self._console.failure is None:
            names = ", ".join(host.name for host in hosts)
            self._console.say(f"giving up, no answer from: {names}; look there for processes that still run")
        for host in hosts:
            host.close_control()
            host.kill()

    def _for_each_running(self, action: Callable[[_Host], None]) -> None:
        """Calls `action` with every host that still runs."""
        for host in self._running:
            action(host)

    def _after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Plans a call of `action` in `delay_s` seconds."""
        self._timers.append((monotonic() + delay_s, action))
