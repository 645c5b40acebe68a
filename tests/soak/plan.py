"""What a fuzzed run does: steps drawn from a seed alone, so that every rank draws the same ones. Pure.

A started call is waited for only behind the steps in which its peers make theirs, and what blocks finds the other side already
started. So whatever is drawn ends, on an engine that keeps its word.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from unisono.comm.base import ANY, DTYPES, Op

FLOATS = tuple(dtype for dtype in DTYPES if dtype.is_floating_point)
MOST_GROUPS = 6
MOST_STARTED = 60
"""Calls and messages under way at once; far more than engines have places for."""
LARGEST_BITS = 20
"""No buffer has more than 2**20 elements: up to 8 MB."""
LONG_LIST = 150
NUM_TAGS = 3
"""For messages whose receive names its source; they come again and again."""
NUM_SCENES_WITH_TAGS = 50_000


@dataclass(frozen=True)
class Collective:
    """`counts`: the elements of each buffer of a list, or of each rank's part. `mapped` is by rank of the group."""

    group: int
    number: int
    kind: str
    started: bool
    dtypes: tuple[torch.dtype, ...]
    counts: tuple[int, ...]
    op: Op
    root: int
    mapped: tuple[bool, ...]
    offset: int
    """Where in its allocation a buffer begins."""


@dataclass(frozen=True)
class Message:
    """One end of a message; whether it is awaited where it stands. `source` of a receive may be ANY."""

    group: int
    is_send: bool
    source: int
    dest: int
    tag: int
    dtype: torch.dtype
    numel: int
    mapped: bool
    blocking: bool


@dataclass(frozen=True)
class Split:
    """`colors` and `keys` by rank of the group; the new groups are numbered in the order of their colors, from `first`."""

    group: int
    colors: tuple[int | None, ...]
    keys: tuple[int, ...]
    first: int


@dataclass(frozen=True)
class Close:
    group: int


@dataclass(frozen=True)
class Wait:
    """Each rank waits for about this share of what it has started, in an order of its own. Never inside a burst of messages."""

    share: float


Step = Collective | Message | Split | Close | Wait

COLLECTIVES = ("allreduce", "allreduce", "noise", "broadcast", "allgather", "reduce_scatter", "alltoall", "barrier", "objects")


def scenes(seed: int, size: int) -> Iterator[Sequence[Step]]:
    """Without end, for a world of `size` ranks, which is group 0. Steps that need each other stand in one scene."""
    draw = random.Random(f"{seed} of {size}")
    sizes = {0: size}
    num_groups = 1
    num_started = 0
    for number in range(10**9):
        group = draw.choice(sorted(sizes))
        what = draw.choices(("collective", "messages", "wait", "split", "close"), (60, 25, 10, 3, 2))[0]
        if num_started > MOST_STARTED or what == "wait":
            share = 1.0 if num_started > MOST_STARTED else draw.choice((0.2, 0.5, 1.0))
            num_started -= round(num_started * share)
            yield [Wait(share)]
        elif what == "collective":
            step = _collective(draw, group, number, sizes[group])
            num_started += step.started
            yield [step]
        elif what == "messages":
            burst = _messages(draw, group, sizes[group], any_tag=NUM_TAGS + number % NUM_SCENES_WITH_TAGS)
            num_started += sum(not step.blocking for step in burst)
            yield burst
        elif what == "split" and len(sizes) < MOST_GROUPS:
            colors = tuple(draw.choice((None, 0, 0, 1, 2)) for _ in range(sizes[group]))
            yield [Split(group, colors, tuple(draw.randrange(3) for _ in colors), num_groups)]
            for color in sorted({color for color in colors if color is not None}):
                sizes[num_groups] = colors.count(color)
                num_groups += 1
        elif what == "close" and group != 0:
            del sizes[group]
            yield [Close(group)]


def groups_of(split: Split, members: Sequence[int]) -> dict[int, list[int]]:
    """The members of each new group, in its order, by the group's number."""
    found: dict[int, list[int]] = {}
    for color in sorted({color for color in split.colors if color is not None}):
        chosen = sorted((split.keys[r], r) for r, c in enumerate(split.colors) if c == color)
        found[split.first + len(found)] = [members[r] for _, r in chosen]
    return found


def _numel(draw: random.Random) -> int:
    """Every size in which engines behave differently; mostly short ones, as these come in great numbers."""
    if draw.random() < 0.08:
        return 0
    return int(2 ** (draw.uniform(0, 12) if draw.random() < 0.85 else draw.uniform(12, LARGEST_BITS)))


def _collective(draw: random.Random, group: int, number: int, size: int) -> Collective:
    kind = draw.choice(COLLECTIVES)
    is_list = kind in ("allreduce", "broadcast")
    length = draw.choice((1, 1, 1, 2, 5)) if draw.random() < 0.98 else LONG_LIST
    largest = _numel(draw)
    count = {"noise": 1, "alltoall": size, "allgather": size, "reduce_scatter": size}.get(kind, length if is_list else 0)
    # A list of many buffers, and the parts of many ranks, share the size.
    counts = tuple(draw.choice((0, 1, largest // max(1, count), largest // max(1, count))) for _ in range(count))
    return Collective(
        group,
        number,
        kind,
        started=draw.random() < 0.5 and kind not in ("barrier", "objects", "noise"),
        dtypes=tuple(draw.choice(FLOATS if kind == "noise" else DTYPES) for _ in range(count if is_list else 1)),
        counts=counts if kind != "noise" else (largest,),
        op=draw.choice(tuple(Op)),
        root=draw.randrange(size),
        mapped=tuple(draw.random() < 0.5 for _ in range(size)),
        offset=draw.choice((0, 0, 1, 3)),
    )


def _messages(draw: random.Random, group: int, size: int, any_tag: int) -> list[Message]:
    """Some messages: both ends of each, the ends of one pair and tag in the order of sending, all else in any order."""
    ends: list[Message] = []
    any_dtype, any_numel = draw.choice(DTYPES), _numel(draw)
    for _ in range(draw.choice((1, 1, 2, 5, 20))):
        source, dest = draw.randrange(size), draw.randrange(size)
        tag, dtype, numel = draw.randrange(NUM_TAGS), draw.choice(DTYPES), _numel(draw)
        if draw.random() < 0.5:  # any receive may take any of these, so all have one size
            tag, dtype, numel = any_tag, any_dtype, any_numel
        for is_send in (True, False):
            named = ANY if _takes_any(tag) and not is_send else source
            ends.append(Message(group, is_send, named, dest, tag, dtype, numel, draw.random() < 0.5, False))
    order = list(range(len(ends)))
    draw.shuffle(order)
    return _with_blocking(draw, _in_order_of_sending(ends, order))


def _in_order_of_sending(ends: list[Message], order: list[int]) -> list[Message]:
    """Shuffled, but in each channel sends and receives keep their order among themselves."""
    waiting: dict[object, list[Message]] = {}
    for end in ends:
        waiting.setdefault((end.is_send, _channel(end)), []).append(end)
    return [waiting[ends[position].is_send, _channel(ends[position])].pop(0) for position in order]


def _with_blocking(draw: random.Random, ends: list[Message]) -> list[Message]:
    """Some of those block whose other end stands before them; but a receive of any source that stands before a send may be taken
    by the later send of a rank that is ahead, so these sends never block."""
    num_sends: Counter[object] = Counter()
    num_receives: Counter[object] = Counter()
    found = []
    for end in ends:
        channel = _channel(end)
        mine, theirs = (num_sends, num_receives) if end.is_send else (num_receives, num_sends)
        mine[channel] += 1
        blocking = theirs[channel] >= mine[channel] and draw.random() < 0.6 and not (end.is_send and _takes_any(end.tag))
        found.append(Message(**{**vars(end), "blocking": blocking}))
    return found


def _channel(end: Message) -> object:
    """What decides which receive may take which message."""
    return (end.dest, end.tag) if _takes_any(end.tag) else (end.source, end.dest, end.tag)


def _takes_any(tag: int) -> bool:
    """Whether receives with this tag take messages of any source. Such a tag serves one scene, as those who are ahead would
    otherwise send into the receives of an earlier one."""
    return tag >= NUM_TAGS
