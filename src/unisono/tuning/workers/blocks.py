"""The workers, the blocks that they form, and the trial that a block runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Protocol

from unisono.cluster.rendezvous import derived_port
from unisono.tuning.study.store import PendingTrial
from unisono.tuning.study.study import Trial
from unisono.tuning.study.trial_plan import Objective, Part, final_values
from unisono.tuning.workers.block_layout import Layout
from unisono.tuning.workers.messages import Message


class Workers(Protocol):
    """The worker processes, on this node and on others."""

    def start(self, rank: int) -> None:
        """Starts a new process for a rank, which sends {"is": "ready"}. Not blocking."""

    def send(self, rank: int, message: Message) -> None:
        """Sends a message to the worker of a rank. Not blocking."""

    def signal(self, rank: int, signum: int) -> None:
        """Sends a signal to the worker of a rank. Not blocking."""

    def place_of(self, rank: int) -> Mapping[str, Any]:
        """Returns `node`, `address`, `gpus`, `our_gpus` and `threads` of a rank. Pure."""


class TrialObserver(Protocol):
    """An observer that shows the progress of trials."""

    def trial_ended(self, trial: Trial) -> None:
        """Called with a trial that has a result, perhaps more than once."""

    def say(self, text: str) -> None:
        """Called with a line that a user should see."""


@dataclass
class RunningTrial:
    """A trial that a block is running."""

    pending: PendingTrial
    values: Mapping[str, Any]
    began: float
    wave: int = 0
    results: list[dict[str, Any]] = field(default_factory=list)
    """Of the parts that have ended."""
    parts: dict[int, Part] = field(default_factory=dict)
    """Rank of the first worker -> what it trains in this wave."""
    busy_ranks: set[int] = field(default_factory=set)
    """Ranks that are still working on this wave."""
    final_messages: dict[int, Message] = field(default_factory=dict)
    """The last messages of the first workers of each part."""
    epochs: dict[int, dict[int, float]] = field(default_factory=dict)
    """First worker -> epoch -> objective."""
    waiting_at: dict[int, int] = field(default_factory=dict)
    """First workers that wait for the answer whether to continue -> epoch."""
    last_step: int = -1
    """The last step that was reported."""
    should_prune: bool = False
    failure: tuple[str, str] | None = None
    kill_at: float | None = None

    @property
    def wave_id(self) -> str:
        """The id that all messages of this wave carry, so that they are distinguished from those of an earlier wave."""
        return f"{self.pending.number}.{self.pending.attempt}.{self.wave}"

    def value_at(self, rank: int, epoch: int, objectives: Sequence[Objective]) -> float | None:
        """Returns the objective of a part at an epoch, or at the first later epoch that is known; None where the part has not come
        that far. Pure."""
        if rank in self.final_messages:
            return final_values(objectives, self.final_messages[rank])[0]
        later = [one for one in self.epochs.get(rank, ()) if one >= epoch]
        return self.epochs[rank][min(later)] if later else None


@dataclass(eq=False)
class Block:
    """Ranks that work on one trial together."""

    number: int
    ranks: Sequence[int]
    running: RunningTrial | None = None
    prefetched: RunningTrial | None = None
    """The trial that it runs next, which was sent in advance."""


class Formation:
    """Which ranks form which block; blocks that lose a rank are broken up, and the remaining ranks form new ones. Local."""

    def __init__(self, layout: Layout) -> None:
        self._block_size = layout.block_size
        self.blocks = {number: Block(number, tuple(layout.ranks_of(number))) for number in range(layout.num_blocks)}
        self._block_of = {rank: block for block in self.blocks.values() for rank in block.ranks}
        self._spare: list[int] = []
        """Remaining ranks of blocks that lost a member."""
        self._num_made = layout.num_blocks

    def block_of(self, rank: int) -> Block | None:
        """Returns the block of a rank; None where the rank is in no block. Pure."""
        return self._block_of.get(rank)

    def is_spare(self, rank: int) -> bool:
        """Whether a rank is in no block now but may join a new one. Pure."""
        return rank in self._spare

    def break_up(self, gone: Set[int]) -> list[Block]:
        """Breaks up the blocks of these lost ranks, whose other ranks become spare, and returns them."""
        broken = {block.number: block for rank in sorted(gone) if (block := self._block_of.get(rank)) is not None}
        for block in broken.values():
            del self.blocks[block.number]
            for rank in block.ranks:
                del self._block_of[rank]
            self._spare += block.ranks
        self._spare = [rank for rank in self._spare if rank not in gone]
        return list(broken.values())

    def form_new_blocks(self) -> list[Block]:
        """Forms new blocks of spare ranks and returns them."""
        found = []
        while len(self._spare) >= self._block_size:
            members, self._spare = self._spare[: self._block_size], self._spare[self._block_size :]
            block = Block(self._num_made, tuple(members))
            self._num_made += 1
            self.blocks[block.number] = block
            self._block_of |= dict.fromkeys(members, block)
            found.append(block)
        return found


def topology_fields(places: Sequence[Mapping[str, Any]], index: int, token: str, job: str) -> dict[str, Any]:
    """Returns the fields of a `Topology` for one of the workers of a model: its rank among them, and where they meet. Pure."""
    here = [other for other, place in enumerate(places) if place["node"] == places[index]["node"]]
    return {
        "launcher": "unisono",
        "global_rank": index,
        "world_size": len(places),
        "local_rank": here.index(index),
        "local_size": len(here),
        "node_rank": None,
        "num_nodes": None,
        "node_name": places[index]["node"],
        "address": places[0]["address"],
        "port": derived_port(token),
        "token": token,
        "secret": token,
        "job": job,
        "gpus": list(places[index]["gpus"]),
        "our_gpus": list(places[index]["our_gpus"]),
    }
