"""What cannot be cut into shards is refused with the reason; sizes that differ are said."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from unisono.algorithms.sharded import Options, Sharded, shards_of_all
from unisono.errors import UsageError
from unisono.task.task import Task
from unisono.training.shard_rules import choose_algorithm, lonely_note, shard_note


def task(**settings: Any) -> Task:
    return Task(**{"model": nn.Identity, "data": dict, "shards": 8, "global_batch": 64, **settings})


def test_shards_choose_their_algorithm() -> None:
    assert choose_algorithm(task(), "allreduce", {}) == ("sharded", {"num_shards": 8})
    assert choose_algorithm(task(shards=None), "allreduce", {"bucket_mb": 1}) == ("allreduce", {"bucket_mb": 1})


@pytest.mark.parametrize(
    ("settings", "algorithm", "given", "told"),
    [
        ({"shards": None}, "sharded", {}, "--algorithm sharded needs the number of shards: --shards S"),
        ({}, "easgd", {}, r"cannot be cut into 8 shards \(--shards\): the result of --algorithm easgd depends on which worker"),
        ({"step": print}, "allreduce", {}, "the task's own step updates"),
        ({"accumulate": 2}, "allreduce", {}, r"each shard is a micro-batch already; leave accumulate 2"),
        (
            {"global_batch": 7},
            "allreduce",
            {},
            r"global_batch 7 \(--global-batch\) leaves some shards without a sample",
        ),
        ({}, "allreduce", {"bucket_mb": 1}, "has no option 'bucket_mb'"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], algorithm: str, given: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        choose_algorithm(task(**settings), algorithm, given)


def test_more_workers_than_shards() -> None:
    with pytest.raises(UsageError, match=r"9 workers are more than the 8 shards \(--shards\).*use at most 8 workers"):
        Sharded.plan(Options(8), 9)
    assert Sharded.plan(Options(8), 4).shards == [range(2), range(2, 4), range(4, 6), range(6, 8)]


@pytest.mark.parametrize("number", ["0", -1, 2.5, True])
def test_a_number_of_shards_that_is_none(number: Any) -> None:
    with pytest.raises(UsageError, match="shards of the task must be a whole number of at least 1"):
        task(shards=number)


def test_sizes_that_differ_are_said() -> None:
    assert shard_note(task()) == shard_note(task(shards=None)) == ""
    assert shard_note(task(global_batch=50, shards=12)) == (
        "the batch of 50 samples is cut into 10 shards of 4 and 2 of 5 samples; every sample has the same weight"
    )


def test_every_shard_has_one_worker() -> None:
    for num_shards in range(1, 20):
        for size in range(1, num_shards + 1):
            ranges = shards_of_all(num_shards, size)
            assert [shard for own in ranges for shard in own] == list(range(num_shards))
            assert min(map(len, ranges)) >= 1 and max(map(len, ranges)) - min(map(len, ranges)) <= 1


def test_batch_norm_of_one_sample_is_foreseen() -> None:
    norm = nn.Sequential(nn.BatchNorm1d(2))
    assert "a batch of 10 samples leaves shards of one sample" in lonely_note(task(), norm, 74)
    assert (
        lonely_note(task(), norm, 64 + 16)
        == lonely_note(task(), nn.Linear(1, 1), 74)
        == lonely_note(task(shards=None), norm, 74)
        == ""
    )
