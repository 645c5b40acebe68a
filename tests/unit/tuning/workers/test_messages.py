"""A worker may know its next order while it is at one; answers find their way past it, and an order may be dropped."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from unisono.comm.control_plane.channel import Channel
from unisono.tuning.workers.messages import DROPPED, Dropped, MessageQueue, channel_of, send_message


@pytest.fixture
def ends() -> Iterator[tuple[Channel, MessageQueue]]:
    mine, theirs = socket.socketpair()
    with mine, theirs:
        yield channel_of(mine), MessageQueue(channel_of(theirs))


def train(name: str) -> dict[str, str]:
    return {"do": "train", "id": name}


def nothing() -> None: ...


def never() -> None:
    raise AssertionError("it need not wait")


def test_commands_come_in_their_order(ends: tuple[Channel, MessageQueue]) -> None:
    sender, box = ends
    for name in "abc":
        send_message(sender, train(name))
    assert [box.next_command(never)["id"] for _ in range(3)] == ["a", "b", "c"]


def test_an_answer_overtakes_a_command(ends: tuple[Channel, MessageQueue]) -> None:
    sender, box = ends
    for letter in (train("next"), {"go": True}, train("after"), {"value": 3}):
        send_message(sender, letter)
    assert box.wait_for_answer() == {"go": True} and box.wait_for_answer() == {"value": 3}
    assert [box.next_command(never)["id"] for _ in range(2)] == ["next", "after"]


def test_a_dropped_command_is_not_begun(ends: tuple[Channel, MessageQueue]) -> None:
    sender, box = ends
    for letter in (train("a"), {"do": "drop", "id": "a"}, train("b")):
        send_message(sender, letter)
    assert box.next_command(never)["id"] == "b"


def test_a_command_that_has_begun_cannot_be_dropped(ends: tuple[Channel, MessageQueue]) -> None:
    sender, box = ends
    send_message(sender, train("a"))
    assert box.next_command(never)["id"] == "a"
    for letter in ({"do": "drop", "id": "a"}, {"go": True}, train("b")):
        send_message(sender, letter)
    assert box.wait_for_answer() == {"go": True} and box.next_command(never)["id"] == "b"


def test_before_it_waits_it_does_something_else(ends: tuple[Channel, MessageQueue]) -> None:
    sender, box = ends
    done: list[str] = []

    def meanwhile() -> None:
        done.append("tidied")
        send_message(sender, train("a"))

    assert box.next_command(meanwhile)["id"] == "a" and done == ["tidied"]


def test_a_drop_alone_is_waited_out(ends: tuple[Channel, MessageQueue]) -> None:
    sender, box = ends
    send_message(sender, {"do": "drop", "id": "a"})

    def meanwhile() -> None:
        send_message(sender, train("b"))

    assert box.next_command(meanwhile)["id"] == "b"


def test_a_worker_that_began_a_dropped_command_learns_it_when_it_asks(ends: tuple[Channel, MessageQueue]) -> None:
    sender, box = ends
    send_message(sender, train("a"))
    assert box.next_command(never)["id"] == "a"
    for letter in (train("next"), {DROPPED: "an earlier one"}, {DROPPED: "a"}):
        send_message(sender, letter)
    with pytest.raises(Dropped):
        box.wait_for_answer()
    assert box.next_command(never)["id"] == "next"


def test_an_unexpected_answer_is_no_command(ends: tuple[Channel, MessageQueue]) -> None:
    sender, box = ends
    for letter in ({"go": True}, train("a")):
        send_message(sender, letter)
    assert box.next_command(never)["id"] == "a"
    send_message(sender, {"go": True})

    def meanwhile() -> None:
        send_message(sender, train("b"))

    assert box.next_command(meanwhile)["id"] == "b"


def test_the_end_of_the_other_side_is_reported(ends: tuple[Channel, MessageQueue]) -> None:
    sender, box = ends
    sender.end_sending()
    with pytest.raises(EOFError):
        box.next_command(nothing)
