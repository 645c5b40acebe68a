"""Negotiation, cache and fusion without threads or wires: every rank is an object, and a round is a function."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from unisono.horovod._impl.engine.agreed_operation import Agreement
from unisono.horovod._impl.engine.agreement_cache import Cache
from unisono.horovod._impl.engine.fusion import fuse
from unisono.horovod._impl.engine.negotiation import Negotiation
from unisono.horovod._impl.engine.operation_request import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BARRIER,
    BROADCAST,
    JOIN,
    ReduceOp,
    Request,
    disagreement,
)

F32, I32 = torch.float32, torch.int32


def allreduce(name: str, *shape: int, dtype: torch.dtype = F32, op: int = ReduceOp.SUM, prescale: float = 1.0) -> Request:
    return Request(f"allreduce.{name}", ALLREDUCE, ((dtype, shape or (4,)),), op, prescale=prescale)


def allgather(name: str, *shape: int) -> Request:
    return Request(f"allgather.{name}", ALLGATHER, ((F32, shape),))


class Ranks:
    """The negotiations of all ranks; a round shows what the wire would carry."""

    def __init__(self, size: int, capacity: int = 8) -> None:
        self.all = [Negotiation(rank, range(size), capacity) for rank in range(size)]
        self.num_told = 0

    def submit(self, rank: int, *requests: Request) -> None:
        for request in requests:
            self.all[rank].submit(request)

    def round(self) -> list[Agreement]:
        """What all agreed on, after having checked that all did."""
        (length,) = {one.num_marks for one in self.all}
        vectors = np.empty((len(self.all), length), np.uint8)
        for one, vector in zip(self.all, vectors, strict=True):
            one.mark(vector)
        least = vectors.min(axis=0)
        agreed = [one.apply_marks(least) for one in self.all]
        if not least[0]:
            told = [one.take_unsent() for one in self.all]
            self.num_told += sum(len(requests) for requests in told)
            for heard, one in zip(agreed, self.all, strict=True):
                heard += one.apply_requests([[Request.from_plain(request.as_plain()) for request in part] for part in told])
        shown = [[(one.name, one.error, one.requests, one.last_joined) for one in heard] for heard in agreed]
        assert all(other == shown[0] for other in shown)
        return agreed[0]

    def names(self) -> list[str]:
        return [one.name.partition(".")[2] for one in self.round()]


def test_a_name_is_agreed_when_all_have_submitted_it() -> None:
    ranks = Ranks(3)
    for rank in (2, 0):
        ranks.submit(rank, allreduce("a"))
        assert ranks.names() == []
    ranks.submit(1, allreduce("a"))
    assert ranks.names() == ["a"]
    assert not any(one.is_waiting for one in ranks.all)


def test_any_order_is_agreed_in_one_order() -> None:
    ranks = Ranks(2)
    ranks.submit(0, allreduce("a"), allreduce("b"), allreduce("c"))
    ranks.submit(1, allreduce("c"), allreduce("a"), allreduce("b"))
    assert ranks.names() == ["a", "b", "c"]


def test_the_second_time_costs_only_marks() -> None:
    ranks = Ranks(2)
    for time in range(3):
        for rank in range(2):
            ranks.submit(rank, allreduce("a"), allgather("b", 2 + rank, 3))
        assert sorted(ranks.names()) == ["a", "b"]
        assert ranks.num_told == 4, f"time {time}"


def test_a_mark_stays_until_the_others_come() -> None:
    ranks = Ranks(2)
    for rank in range(2):
        ranks.submit(rank, allreduce("a"), allreduce("b"))
    ranks.round()
    ranks.submit(0, allreduce("a"), allreduce("b"))
    assert ranks.names() == []
    ranks.submit(1, allreduce("b"))
    assert ranks.names() == ["b"]
    assert ranks.all[0].is_waiting
    ranks.submit(1, allreduce("a"))
    assert ranks.names() == ["a"]


def test_a_changed_shape_is_sent_again_by_all() -> None:
    ranks = Ranks(2)
    for rank in range(2):
        ranks.submit(rank, allreduce("a", 4))
    ranks.round()
    ranks.submit(0, allreduce("a", 4))  # marked
    ranks.submit(1, allreduce("a", 5))  # told
    assert ranks.names() == []
    (refused,) = ranks.round()
    assert refused.error is not None
    assert "shape: rank 0 has [4], rank 1 has [5]" in refused.error
    for rank in range(2):
        ranks.submit(rank, allreduce("a", 5))
    (agreed,) = ranks.round()
    assert agreed.error is None
    assert agreed.first.parts == ((F32, (5,)),)


def test_numbers_are_not_remembered() -> None:
    ranks = Ranks(2)
    for number in range(3):
        for rank in range(2):
            ranks.submit(rank, allreduce(f"noname.{number}")._replace(comes_again=False))
        assert ranks.names() == [f"noname.{number}"]
    assert ranks.all[0].num_marks == 2


def test_a_user_may_name_things_as_we_number_them() -> None:
    ranks = Ranks(2)
    for _ in range(3):
        for rank in range(2):
            ranks.submit(rank, allreduce("noname.0"))
        assert ranks.names() == ["noname.0"]
    assert ranks.num_told == 2
    assert Request.from_plain(allreduce("x").as_plain()) == allreduce("x")


def test_refusals_are_not_remembered() -> None:
    ranks = Ranks(2)
    for _ in range(2):
        for rank in range(2):
            ranks.submit(rank, allreduce("a", 4 + rank))
        (refused,) = ranks.round()
        assert refused.error is not None
    assert ranks.all[0].num_marks == 2


def test_without_a_cache_every_request_is_sent() -> None:
    ranks = Ranks(2, capacity=0)
    for _ in range(3):
        for rank in range(2):
            ranks.submit(rank, allreduce("a"))
        assert ranks.names() == ["a"]
    assert ranks.num_told == 6


def test_a_request_evicted_while_marked_is_sent() -> None:
    ranks = Ranks(2, capacity=1)
    for rank in range(2):
        ranks.submit(rank, allreduce("a"))
    ranks.round()
    ranks.submit(0, allreduce("a"), allreduce("b"))
    ranks.submit(1, allreduce("b"))
    assert ranks.names() == ["b"]
    ranks.submit(1, allreduce("a"))
    assert ranks.names() == ["a"]


def test_joined_ranks_take_part_in_sums() -> None:
    ranks = Ranks(3)
    for rank in range(3):
        ranks.submit(rank, allreduce("known"))
    ranks.round()
    ranks.submit(1, Request(JOIN, JOIN))
    assert ranks.round() == []
    for rank in (0, 2):
        ranks.submit(rank, allreduce("known"), allreduce("new"))
    agreed = ranks.round()
    assert sorted(one.name for one in agreed) == ["allreduce.known", "allreduce.new"]
    assert all(one.error is None for one in agreed)
    assert [request is None for request in next(one for one in agreed if "new" in one.name).requests] == [False, True, False]
    assert ranks.all[1].has_joined


def test_what_waited_for_a_rank_is_complete_when_it_joins() -> None:
    ranks = Ranks(2)
    ranks.submit(0, allreduce("a"))
    assert ranks.names() == []
    ranks.submit(1, Request(JOIN, JOIN))
    assert ranks.names() == ["a"]


@pytest.mark.parametrize(
    "request_",
    [
        allgather("x", 2),
        Request("broadcast.x", BROADCAST, ((F32, (2,)),)),
        Request("alltoall.x", ALLTOALL, ((F32, (2,)),), splits=(1, 1)),
        allreduce("x", op=ReduceOp.MIN),
        allreduce("x", op=ReduceOp.PRODUCT),
    ],
    ids=lambda request: request.kind,
)
@pytest.mark.parametrize("known", [False, True])
def test_joined_ranks_refuse_what_needs_their_data(request_: Request, known: bool) -> None:
    ranks = Ranks(2)
    if known:
        for rank in range(2):
            ranks.submit(rank, request_)
        ranks.round()
    ranks.submit(0, request_)
    ranks.submit(1, Request(JOIN, JOIN))
    agreed = ranks.round() or ranks.round()
    (refused,) = agreed
    assert refused.error is not None
    assert "rank 1 called join()" in refused.error


def test_a_barrier_does_not_wait_for_joined_ranks() -> None:
    ranks = Ranks(2)
    ranks.submit(0, Request("barrier.0", BARRIER))
    ranks.submit(1, Request(JOIN, JOIN))
    (agreed,) = ranks.round()
    assert agreed.error is None


def test_join_ends_when_all_have_joined_and_names_the_last() -> None:
    ranks = Ranks(3)
    for rank in (2, 0, 1):
        assert ranks.round() == []
        ranks.submit(rank, Request(JOIN, JOIN))
    (agreed,) = ranks.round()
    assert agreed.last_joined == 1
    assert not any(one.has_joined for one in ranks.all)
    for rank in range(3):
        ranks.submit(rank, allreduce("again"))
    assert ranks.names() == ["again"]


@pytest.mark.parametrize("seed", range(20))
def test_random_orders_always_end(seed: int) -> None:
    """Every rank submits the same names in an order of its own, a few at a time, several times over."""
    draw = random.Random(seed)
    size, names = draw.randint(1, 4), [f"t{number}" for number in range(12)]
    ranks = Ranks(size, capacity=draw.choice([0, 3, 8, 100]))
    for _ in range(4):
        left = [draw.sample(names, len(names)) for _ in range(size)]
        rows = {name: draw.choice([4, 5]) for name in names}
        done: list[str] = []
        for _ in range(1000):
            for rank in range(size):
                for _ in range(min(len(left[rank]), draw.randint(0, 4))):
                    name = left[rank].pop()
                    ranks.submit(rank, allreduce(name, rows[name], 2))
            done += ranks.names()
            if len(done) == len(names):
                break
        assert sorted(done) == sorted(names)
        assert not any(one.is_waiting for one in ranks.all)


@pytest.mark.parametrize("seed", range(60))
def test_random_orders_end_where_ranks_join_in_the_middle(seed: int) -> None:
    """What a rank had in flight when it joined is neither lost nor mixed up with what comes later under the same name."""
    draw = random.Random(seed)
    size = draw.randint(2, 3)
    ranks = Ranks(size, capacity=draw.choice([0, 1, 3, 8]))
    flying: list[dict[str, Request]] = [{} for _ in range(size)]
    for _ in range(4):
        common = [allreduce(f"t{draw.randrange(4)}", draw.choice([4, 4, 4, 5])) for _ in range(draw.randint(1, 8))]
        left = [[*common[: draw.randint(0, len(common))], Request(JOIN, JOIN)] for _ in range(size)]
        for _ in range(300):
            for rank, mine in enumerate(flying):
                for _ in range(draw.randint(0, 4)):
                    if left[rank] and left[rank][0].name not in mine and JOIN not in mine:
                        request = left[rank].pop(0)
                        mine[request.name] = request
                        ranks.submit(rank, request)
            for agreement in ranks.round():
                for rank, mine in enumerate(flying):
                    own = mine.pop(agreement.name, None)
                    assert own is not None or rank in agreement.joined, f"{agreement.name} was not submitted by rank {rank}"
                    if own is not None and agreement.error is None and agreement.name != JOIN:
                        assert agreement.requests[rank] == own, "agreed on something else than was submitted"
            if not any(left) and not any(flying):
                break
        assert not any(left) and not any(flying), flying


# ---- what must be alike ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (allreduce("x", 2, 3), allreduce("x", 2, 4), "shape: rank 0 has [2, 3], rank 5 has [2, 4]"),
        (allreduce("x", dtype=F32), allreduce("x", dtype=I32), "type: rank 0 has float32, rank 5 has int32"),
        (allreduce("x", op=ReduceOp.SUM), allreduce("x", op=ReduceOp.MAX), "reduction: rank 0 has sum, rank 5 has max"),
        (allreduce("x"), allreduce("x", prescale=2.0), "prescale factor: rank 0 has 1.0, rank 5 has 2.0"),
        (
            Request("broadcast.x", BROADCAST, ((F32, (2,)),), root=0),
            Request("broadcast.x", BROADCAST, ((F32, (2,)),), root=1),
            "root rank: rank 0 has 0, rank 5 has 1",
        ),
        (allgather("x", 2, 3), allgather("x", 9, 4), "shape after the first dimension: rank 0 has [2, 3], rank 5 has [9, 4]"),
        (allgather("x", 2, 3), allgather("x", 9), "number of dimensions: rank 0 has 2, rank 5 has 1"),
        (
            Request("grouped_allreduce.x", ALLREDUCE, ((F32, (2,)), (F32, (2,)))),
            Request("grouped_allreduce.x", ALLREDUCE, ((F32, (2,)), (I32, (2,)))),
            "type of tensor 1",
        ),
        (
            Request("grouped_allreduce.x", ALLREDUCE, ((F32, (2,)), (F32, (2,)))),
            Request("grouped_allreduce.x", ALLREDUCE, ((F32, (2,)),)),
            "number of tensors: rank 0 has 2, rank 5 has 1",
        ),
        (
            Request("allreduce.x", ALLREDUCE, ((F32, (2,)),)),
            Request("allreduce.x", ALLREDUCE, ((F32, (2,)),), device="cuda"),
            "device: rank 0 has cpu, rank 5 has cuda",
        ),
    ],
)
def test_what_differs_is_named(first: Request, second: Request, words: str) -> None:
    assert disagreement({0: first, 5: first}) is None
    told = disagreement({0: first, 5: second})
    assert told is not None
    assert words in told
    assert first.name in told


def test_rows_may_differ_where_they_are_gathered() -> None:
    assert disagreement({0: allgather("x", 2, 3), 1: allgather("x", 9, 3)}) is None


def test_a_request_survives_the_wire() -> None:
    request = Request("alltoall.é", ALLTOALL, ((torch.bfloat16, (2, 0)), (torch.bool, ())), 3, 2, 0.5, 2.0, (1, 1), "cuda")
    assert Request.from_plain(request.as_plain()) == request
    assert request.num_bytes == 1


# ---- cache -------------------------------------------------------------------------------------------------------------


def test_the_cache_gives_up_what_was_used_longest_ago() -> None:
    cache = Cache(2)
    assert cache.put(Agreement((allreduce("a"),))) is None
    assert cache.put(Agreement((allreduce("b"),))) is None
    cache.use(0)
    assert cache.put(Agreement((allreduce("c"),))) == "allreduce.b"
    assert cache.slot("allreduce.c") == 1  # the place of what went
    assert cache.slot("allreduce.b") is None
    assert len(cache) == cache.num_slots == 2
    cache.drop("allreduce.a")
    assert cache.put(Agreement((allreduce("d"),))) is None
    assert cache.slot("allreduce.d") == 0


# ---- fusion ------------------------------------------------------------------------------------------------------------


def buckets(requests: Sequence[Request], threshold_bytes: int) -> list[list[str]]:
    agreements = [Agreement((request,)) for request in requests]
    return [[one.name.partition(".")[2] for one in bucket] for bucket in fuse(agreements, threshold_bytes)]


def test_same_kinds_travel_together_up_to_the_threshold() -> None:
    tensors = [allreduce(name, 4) for name in "abcde"]  # 16 bytes each
    assert buckets(tensors, 1000) == [["a", "b", "c", "d", "e"]]
    assert buckets(tensors, 32) == [["a", "b"], ["c", "d"], ["e"]]
    assert buckets(tensors, 0) == [["a"], ["b"], ["c"], ["d"], ["e"]]


def test_others_in_between_do_not_part_them() -> None:
    mixed = [allreduce("a"), allreduce("i", dtype=I32), allreduce("b"), allgather("g", 2), allreduce("m", op=ReduceOp.MAX)]
    assert buckets([*mixed, allreduce("c"), allreduce("s", prescale=0.5)], 1000) == [["a", "b", "c"], ["i"], ["g"], ["m"], ["s"]]


def test_gathers_travel_together_and_count_what_comes_from_all() -> None:
    def gathered(name: str) -> Agreement:
        return Agreement((allgather(name, 1), allgather(name, 3)))

    found = fuse([gathered("a"), gathered("b"), gathered("c")], 32)  # 16 bytes each
    assert [[one.name for one in bucket] for bucket in found] == [["allgather.a", "allgather.b"], ["allgather.c"]]


def test_broadcasts_of_one_root_travel_together_whatever_their_types() -> None:
    def broadcast(name: str, dtype: torch.dtype, root: int) -> Request:
        return Request(f"broadcast.{name}", BROADCAST, ((dtype, (2,)),), root=root)

    assert buckets([broadcast("a", F32, 0), broadcast("b", F32, 1), broadcast("c", I32, 0)], 1000) == [["a", "c"], ["b"]]


def test_a_refusal_and_a_group_of_several_types_travel_alone() -> None:
    group = Request("grouped_allreduce.g", ALLREDUCE, ((F32, (2,)), (I32, (2,))))
    refused = Agreement((allreduce("r"),), error="no")
    agreements = [Agreement((allreduce("a"),)), Agreement((group,)), refused, Agreement((allreduce("b"),))]
    assert [[one.name for one in bucket] for bucket in fuse(agreements, 1000)] == [
        ["allreduce.a", "allreduce.b"],
        ["grouped_allreduce.g"],
        ["allreduce.r"],
    ]
