"""Writes the remaining output when a launcher ends, and reports what was lost."""

from __future__ import annotations

import selectors
import signal

from unisono.launch.output import LauncherOutput
from unisono.launch.signals import SignalInbox
from unisono.launch.world import STOP_SIGNALS, wait_for_events


def flush_output(selector: selectors.BaseSelector, inbox: SignalInbox, console: LauncherOutput) -> None:
    """Local, blocking until all output is written, or a stop signal ends the wait; then reports what was lost."""
    _write_pending(selector, inbox, console)
    console.report_lost_output()
    _write_pending(selector, inbox, console)


def exit_code_of_lost_output(failure: OSError | None) -> int:
    """Pure: returns 0 where nothing was lost; 141 as for a program whose reader left (`| head`); 1 otherwise."""
    return 0 if failure is None else 128 + signal.SIGPIPE if isinstance(failure, BrokenPipeError) else 1


def _write_pending(selector: selectors.BaseSelector, inbox: SignalInbox, console: LauncherOutput) -> None:
    """Blocking until all output is written; a stop signal drops what is left."""
    while not console.flushed:
        wait_for_events(selector)
        if any(signum in (*STOP_SIGNALS, signal.SIGKILL) for signum in inbox.received()):
            console.drop()
