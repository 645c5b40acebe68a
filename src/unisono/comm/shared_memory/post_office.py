"""All mailboxes of one process, so that messages move on whatever the process waits for.

A rank that waits in a collective, or for a message of another communicator, still has to copy what its open receives get and to
make room for its peers; otherwise two ranks that wait for each other in different places would never meet.
"""

from __future__ import annotations

import threading
from typing import Protocol

from unisono.comm.shared_memory.board import MAX_SLEEP_S
from unisono.comm.shared_memory.receipts import Receipts
from unisono.comm.shared_memory.segments import Arena

SHORTEST_S, LONGEST_S = 0.1e-3, 2e-3
"""Poll interval of a sleeper that cannot hear every doorbell on which an open message depends; it grows while nothing moves."""


class MailboxProtocol(Protocol):
    """What the post office needs of a mailbox. The lock is held."""

    @property
    def is_open(self) -> bool:
        """Whether a message was started and is not finished."""

    def move(self) -> bool:
        """Local, not blocking: do what can be done; whether another rank can do more now."""


class PostOffice:
    """Shared by a communicator and its subgroups, and by their helper threads."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.receipts = Receipts(arena)
        self.lock = threading.RLock()  # of the same thread: a signal handler may close a communicator
        self._mailboxes: list[MailboxProtocol] = []

    def open(self, mailbox: MailboxProtocol) -> None:
        with self.lock:
            self._mailboxes.append(mailbox)

    def close(self, mailbox: MailboxProtocol) -> None:
        """Local: afterwards nobody touches it."""
        with self.lock:
            self._mailboxes.remove(mailbox)

    def progress(self, slept_s: float = 0.0, heard: MailboxProtocol | None = None) -> float:
        """Local, not blocking: move what can move, and say how long to sleep until the next look, given how long the last sleep
        was (0: none yet). The caller hears the doorbell of `heard` in its sleep, and no other."""
        with self.lock:
            # Before the first sleep only what is open: most sleeps are short and have nothing to do with messages.
            attended = self._mailboxes if slept_s else [mailbox for mailbox in self._mailboxes if mailbox.is_open]
            moved = [mailbox for mailbox in attended if mailbox.move()]
            is_open = any(mailbox.is_open for mailbox in self._mailboxes if mailbox is not heard)
        if any(mailbox is not heard for mailbox in moved):
            return SHORTEST_S
        if not slept_s:
            return SHORTEST_S if is_open else MAX_SLEEP_S
        return min(2 * slept_s, LONGEST_S if is_open else MAX_SLEEP_S)
