"""The end of a launcher: its reader gets what is left, and hears what was lost."""

from __future__ import annotations

import selectors
import signal

from unisono.cluster.output import Console
from unisono.cluster.signals import SignalInbox
from unisono.cluster.world import STOPS, wait_for_events


def pass_on_the_rest(selector: selectors.BaseSelector, inbox: SignalInbox, console: Console) -> None:
    """Local, blocking: until our reader took all that was printed, or a signal says that it never will; and say what was lost."""
    _flush(selector, inbox, console)
    console.tell_what_was_lost()
    _flush(selector, inbox, console)


def code_of(failure: OSError | None) -> int:
    """Pure: of a launcher whose lines were lost; as the shell gives it to a program whose reader left (`| head`)."""
    return 0 if failure is None else 128 + signal.SIGPIPE if isinstance(failure, BrokenPipeError) else 1


def _flush(selector: selectors.BaseSelector, inbox: SignalInbox, console: Console) -> None:
    while not console.flushed:
        wait_for_events(selector)
        if any(signum in (*STOPS, signal.SIGKILL) for signum in inbox.take()):
            console.drop()
