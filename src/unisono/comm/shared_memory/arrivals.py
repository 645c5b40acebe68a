"""Messages that have arrived at a rank and that no receive has matched: in the boxes of their senders, or kept aside.

A box is emptied in order, so messages before a wanted one are removed and kept: a small one is copied, of a large one only the
description is kept, and its sender continues to wait for the receipt.
"""

from __future__ import annotations

from collections import defaultdict, deque

from unisono.comm.base import ANY
from unisono.comm.shared_memory.board import Board
from unisono.comm.shared_memory.boxes import Doorbells, Inbox, Message


class Arrivals:
    """The arrived messages of one rank."""

    def __init__(self, board: Board, bells: Doorbells) -> None:
        self._inboxes = [Inbox(board, source) for source in range(board.size)]
        self._bells = bells
        self._kept: defaultdict[tuple[int, int], deque[Message]] = defaultdict(deque)
        """Messages that were removed from their boxes, by source and tag."""

    def oldest(self, source: int, tag: int) -> Message | None:
        """Local: returns the message that is next for a receive, if there is one. It stays until it is removed.

        Messages of one source come in their order, those of different sources in that of their time.
        """
        sources = range(len(self._inboxes)) if source == ANY else (source,)
        kept = min((self._kept[s, tag][0] for s in sources if (s, tag) in self._kept), key=_time_of, default=None)
        while True:
            heads = [head for s in sources if (head := self._inboxes[s].head()) is not None]
            head = min(heads, key=_time_of, default=None)
            if head is None or (kept is not None and kept.time <= head.time):
                return kept
            if head.tag == tag:
                return head
            self._keep(self._inboxes[head.source], until=tag)

    def remove(self, message: Message) -> None:
        """Local: removes a message of `oldest`, which has been received. Its sender is not woken."""
        inbox, key = self._inboxes[message.source], (message.source, message.tag)
        if inbox.head() is message:
            inbox.remove()
            return
        self._kept[key].popleft()
        if not self._kept[key]:
            del self._kept[key]

    def empty_full_boxes(self) -> None:
        """Local: empties the full boxes. Their senders may wait for free slots, and others for them."""
        for inbox in self._inboxes:
            if inbox.is_full:
                self._keep(inbox)

    def _keep(self, inbox: Inbox, until: int | None = None) -> None:
        """Empties a box, or removes and keeps the messages before the first one with the tag `until`."""
        while (head := inbox.head()) is not None and head.tag != until:
            if head.payload is not None:
                head.payload = head.payload.clone()
            self._kept[inbox.source, head.tag].append(head)
            inbox.remove()
        self._bells.ring(inbox.source)


def _time_of(message: Message) -> int:
    """Returns the time of a message, as a key to sort by."""
    return message.time
