"""Whom to kill and when: drawn from a seed, so that the same seed draws the same again. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

MOMENTS = ("starting", "training", "saving", "evaluating", "ending")
"""Before the first step; between steps; while a checkpoint is being written; in an evaluation; after the last step."""
HOW_OFTEN = (20, 30, 25, 20, 5)
ONE, ALL, LAUNCHER = "one rank", "all", "launcher"
FORK_SERVER, COMMAND = "fork server", "command"
"""How the ranks were started: forked from a process that has loaded PyTorch, or as a user does, by `unisono train -n N`."""
LOCK_STEP = "allreduce"
"""The algorithm whose runs all end alike; of one with a server each is compared with its replay."""
COMMANDS_OF = 8
"""One attempt of so many is started as a user does, which takes seconds."""


@dataclass(frozen=True)
class Kill:
    """One kill, as it was drawn."""

    moment: str
    victim: str
    """One rank, all ranks together with their launcher, or the launcher alone, whose ranks then end by themselves."""
    started_by: str
    workers: int
    rank: int
    """The victim, where it is one rank."""
    share: float
    """From 0 to 1: how late within the moment."""
    finely: float
    """The same again, for what is left to chance within a thousandth of a second."""


def drawn(seed: int, workers: Sequence[int]) -> Iterator[Kill]:
    """Kills without end; the number of workers goes round."""
    draw = random.Random(seed)
    for number in cycle(workers):
        started_by = COMMAND if draw.randrange(COMMANDS_OF) == 0 else FORK_SERVER
        victims = (ONE, ALL, LAUNCHER) if started_by == COMMAND and number > 1 else (ONE, ALL)
        yield Kill(
            draw.choices(MOMENTS, HOW_OFTEN)[0],
            draw.choice(victims),
            started_by,
            number,
            draw.randrange(number),
            draw.random(),
            draw.random(),
        )
