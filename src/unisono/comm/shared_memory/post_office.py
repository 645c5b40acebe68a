"""All mailboxes of one process, so that messages make progress whatever the process waits for.

A rank that waits in a collective, or for a message of another communicator, still has to copy what its open receives get and to
empty the boxes of its peers; otherwise two ranks that wait for each other in different calls would wait for ever.
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
    """The interface of a mailbox that the post office needs. The lock is held."""

    @property
    def is_open(self) -> bool:
        """Whether a message was started and is not finished."""

    def move(self) -> bool:
        """Local, not blocking: moves messages as far as possible; returns whether another rank can do more now."""


class PostOffice:
    """Shared by a communicator and its subgroups, and by their helper threads."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.receipts = Receipts(arena)
        self.lock = threading.RLock()  # of the same thread: a signal handler may close a communicator
        self._mailboxes: list[MailboxProtocol] = []

    def open(self, mailbox: MailboxProtocol) -> None:
        """Local: adds a mailbox, whose messages now make progress in every wait."""
        with self.lock:
            self._mailboxes.append(mailbox)

    def close(self, mailbox: MailboxProtocol) -> None:
        """Local: removes a mailbox."""
        with self.lock:
            self._mailboxes.remove(mailbox)

    def progress(self, slept_s: float = 0.0, heard: MailboxProtocol | None = None) -> float:
        """Local, not blocking: moves what can move, and returns how long to sleep until the next check, given how long the last
        sleep was (0: none yet). The caller is woken by the doorbell of `heard` in its sleep, and by no other."""
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
