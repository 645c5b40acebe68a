"""The tree over the shards: what belongs to it, and that every division into ranks forms the same sums."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest

from unisono.comm.ordered.shard_tree import halves, merges, num_additions, whole_subtrees

Tree = int | tuple["Tree", "Tree"]
MOST_SHARDS, MOST_RANKS = 33, 8


def nodes(node: range) -> list[range]:
    return [node] if len(node) == 1 else [*nodes(halves(node)[0]), *nodes(halves(node)[1]), node]


def tree(node: range) -> Tree:
    """Written as nested pairs of shards."""
    return node.start if len(node) == 1 else (tree(halves(node)[0]), tree(halves(node)[1]))


def leaves(shards: range) -> list[range]:
    return [range(shard, shard + 1) for shard in shards]


def even(num_shards: int, size: int) -> list[range]:
    return [range(*ends) for ends in pairwise(num_shards * rank // size for rank in range(size + 1))]


def stacked(num_shards: int, pieces: list[range], given: list[Tree]) -> list[Tree]:
    """What stands on the stack at the end."""
    stack: list[Tree] = []
    for one, count in zip(given, num_additions(num_shards, pieces), strict=True):
        stack.append(one)
        for _ in range(count):
            right = stack.pop()
            stack[-1] = (stack[-1], right)
    return stack


def test_a_node_has_a_power_of_two_on_its_left_and_no_more_on_its_right() -> None:
    assert tree(range(1)) == 0
    assert tree(range(6)) == (((0, 1), (2, 3)), (4, 5))
    assert tree(range(7)) == (((0, 1), (2, 3)), ((4, 5), 6))
    for num_shards in range(2, MOST_SHARDS + 1):
        left, right = halves(range(num_shards))
        assert len(left).bit_count() == 1 and len(right) <= len(left) and (left.start, right.stop) == (0, num_shards)


@pytest.mark.parametrize("num_shards", range(1, MOST_SHARDS + 1))
def test_whole_subtrees_of_every_stretch_are_the_largest_nodes_inside(num_shards: int) -> None:
    every = nodes(range(num_shards))
    for start, stop in combinations(range(num_shards + 1), 2):
        inside = [node for node in every if start <= node.start and node.stop <= stop]
        below = {half for node in inside if len(node) > 1 for half in halves(node)}
        assert whole_subtrees(num_shards, start, stop) == sorted(set(inside) - below, key=lambda node: node.start)


@pytest.mark.parametrize("num_shards", range(1, MOST_SHARDS + 1))
def test_every_division_forms_the_sums_of_the_same_tree(num_shards: int) -> None:
    whole = tree(range(num_shards))
    for size in range(1, min(num_shards, MOST_RANKS) + 1):
        blocks, held = [], []
        for own in even(num_shards, size):
            some = whole_subtrees(num_shards, own.start, own.stop)
            assert [shard for block in some for shard in block] == list(own), "blocks partition the shards of a rank"
            sums = stacked(num_shards, leaves(own), list(own))
            assert sums == [tree(block) for block in some]
            blocks += some
            held += sums
        assert stacked(num_shards, blocks, held) == [whole]
        for left, right in merges(num_shards, blocks):
            held[left] = (held[left], held[right])
        assert held[0] == whole


def test_every_cut_in_two_forms_the_sums_of_the_same_tree() -> None:
    for num_shards in range(2, MOST_SHARDS + 1):
        for cut in range(1, num_shards):
            blocks = [*whole_subtrees(num_shards, 0, cut), *whole_subtrees(num_shards, cut, num_shards)]
            assert stacked(num_shards, blocks, [tree(block) for block in blocks]) == [tree(range(num_shards))]
            assert len(merges(num_shards, blocks)) == len(blocks) - 1


def test_a_power_of_two_of_equal_stretches_has_one_block_each() -> None:
    for size in (1, 2, 4, 8):
        for own in even(4 * size, size):
            assert whole_subtrees(4 * size, own.start, own.stop) == [own]
