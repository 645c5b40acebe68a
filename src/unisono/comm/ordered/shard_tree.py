"""One fixed binary tree over the shards of a step: it gives the order of the sums, whichever ranks hold the shards. Pure.

A node of n > 1 shards has the largest power of two below n of them on its left and the rest on its right. So every aligned run of a
power of two of shards is a node, whatever follows it, and a rank that holds a stretch of shards can form most of its sums alone. A
node is written as the range of its shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def halves(node: range) -> tuple[range, range]:
    """Returns the two nodes below a node of at least two shards."""
    middle = node.start + (1 << ((len(node) - 1).bit_length() - 1))
    return range(node.start, middle), range(middle, node.stop)


def whole_subtrees(num_shards: int, start: int, stop: int) -> list[range]:
    """Returns the largest nodes that lie wholly in the shards from `start` to before `stop`, from left to right."""
    return list(_inside(range(num_shards), start, stop))


def num_additions(num_shards: int, pieces: Sequence[range]) -> list[int]:
    """Returns, for nodes that follow one another, how many additions follow each: put a node on a stack, then replace the
    topmost two by their sum so many times. At the end the stack holds the `whole_subtrees` of all of them."""
    stack: list[range] = []
    counts = []
    for piece in pieces:
        stack.append(piece)
        height = len(stack)
        while len(stack) > 1 and _split_at(num_shards, stack[-1].start) == (stack[-2], stack[-1]):
            right = stack.pop()
            stack[-1] = range(stack[-1].start, right.stop)
        counts.append(height - len(stack))
    return counts


def merges(num_shards: int, pieces: Sequence[range]) -> list[tuple[int, int]]:
    """Returns the same sums with positions instead of a stack: for each (left, right), piece `left` becomes the sum of both."""
    stack: list[int] = []
    pairs = []
    for place, count in enumerate(num_additions(num_shards, pieces)):
        stack.append(place)
        for _ in range(count):
            right = stack.pop()
            pairs.append((stack[-1], right))
    return pairs


def _inside(node: range, start: int, stop: int) -> Iterator[range]:
    """Yields the largest nodes below `node` that lie wholly in the shards from `start` to before `stop`, from left to right."""
    if start <= node.start and node.stop <= stop:
        yield node
    elif start < node.stop and node.start < stop:
        for half in halves(node):
            yield from _inside(half, start, stop)


def _split_at(num_shards: int, middle: int) -> tuple[range, range]:
    """Returns the two halves of the node that is split before shard `middle`."""
    left, right = halves(range(num_shards))
    while right.start != middle:
        left, right = halves(left if middle < right.start else right)
    return left, right
