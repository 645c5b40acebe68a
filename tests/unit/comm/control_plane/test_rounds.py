"""The hub's book: a round is delivered when complete, and called off when somebody who is gone still owes its object."""

from __future__ import annotations

from unisono.comm.control_plane.rounds import Rounds


def test_complete_round_is_delivered_in_the_order_of_members_and_forgotten() -> None:
    rounds = Rounds()
    assert rounds.put("k", (2, 0, 1), 0, b"zero", ()) == []
    assert rounds.put("k", (2, 0, 1), 1, b"one", ()) == []
    assert rounds.missing("k") == [2]
    assert rounds.put("k", (2, 0, 1), 2, b"two", ()) == [((2, 0, 1), ("all", "k", [b"two", b"zero", b"one"]))]
    assert rounds.missing("k") == []
    assert rounds._open == {}


def test_a_member_that_contributed_and_left_is_not_missed() -> None:
    rounds = Rounds()
    rounds.put("k", (0, 1), 1, b"one", ())
    assert rounds.lose(1, {1}) == []
    assert rounds.put("k", (0, 1), 0, b"zero", {1}) == [((0, 1), ("all", "k", [b"zero", b"one"]))]


def test_all_members_learn_once_that_a_round_is_void_and_by_which_member() -> None:
    rounds = Rounds()
    members = (0, 1, 2, 3)
    rounds.put("k", members, 0, b"", ())
    rounds.put("k", members, 1, b"", ())
    assert rounds.lose(2, {2}) == [({0, 1}, ("void", "k", [2]))]
    assert rounds.lose(1, {1, 2}) == [(set(), ("void", "k", [2]))]  # 1 had given its own, so 2 alone is to blame
    assert rounds.put("k", members, 3, b"", {1, 2}) == [({3}, ("void", "k", [2]))]
    assert rounds._open == {}


def test_a_loss_concerns_only_rounds_of_its_groups() -> None:
    rounds = Rounds()
    rounds.put("a", (0, 1), 0, b"", ())
    rounds.put("b", (0, 2), 0, b"", ())
    assert rounds.lose(1, {1}) == [({0}, ("void", "a", [1]))]
    assert rounds.put("b", (0, 2), 2, b"", {1})[0][1][0] == "all"


def test_members_that_disagree() -> None:
    rounds = Rounds()
    rounds.put("k", (0, 1), 0, b"", ())
    ((told, message),) = rounds.put("k", (0, 1, 2), 1, b"", ())
    assert set(told) == {0, 1}
    assert message[0] == "clash"
