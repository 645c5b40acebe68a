"""The blamed ranks when members give up because of one another."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from unisono.comm.calls import Call
from unisono.comm.control_plane.control import CurrentCall, Loss, Report
from unisono.comm.engines.single import SoloControl
from unisono.comm.watch import Watch
from unisono.errors import PeerLost


class Group:
    """A communicator of four as a watch sees it, on rank 0."""

    name, rank, members, on_behalf = "world", 0, (0, 1, 2, 3), None

    def __init__(self, *heard: tuple[int, Loss]) -> None:
        self.control = SoloControl()
        self.control.lost.update(heard)

    def give_up(self, reason: str, ranks: object) -> None:
        """Nobody listens."""


@pytest.mark.parametrize(
    ("heard", "blamed"),
    [
        ([(1, Loss("gave up", (2,)))], (2,)),
        ([(1, Loss("gave up", (2,))), (2, Loss("gave up", (1,)))], (2,)),  # the second only because of the first
        ([(2, Loss("gave up", (1,))), (1, Loss("gave up", (2,)))], (1,)),
        ([(1, Loss("gave up", (2,))), (3, Loss("gave up", (2,)))], (2,)),
        ([(2, Loss("died")), (1, Loss("gave up", (2,)))], (2,)),
        ([(1, Loss("gave up", (2, 3)))], (2, 3)),
    ],
)
def test_the_first_cause_is_blamed(heard: list[tuple[int, Loss]], blamed: tuple[int, ...]) -> None:
    watch = Watch(Group(*heard), Call("allreduce"), 1.0)  # type: ignore[arg-type]
    with pytest.raises(PeerLost) as caught:
        watch.raise_if_lost()
    assert caught.value.ranks == blamed


class LateNews(SoloControl):
    """While we ask what the others do, rank 1 gives up because of rank 2, which then comes."""

    def reports(self, members: Sequence[int], timeout_s: float) -> dict[int, Report]:  # noqa: ARG002
        self.lost[1] = Loss("gave up", (2,))
        return {member: Report({"world": CurrentCall(1, "allreduce()")}, "") for member in members}


def test_a_rank_that_finds_none_missing_blames_the_cause_of_the_first_loss() -> None:
    group = Group()
    group.control = LateNews()
    call = Call("allreduce")
    group.control.current_calls["world"] = (1, call)
    with pytest.raises(PeerLost) as caught:
        Watch(group, call, 1.0).raise_timeout()  # type: ignore[arg-type]
    assert caught.value.ranks == (2,)
