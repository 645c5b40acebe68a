"""What the benchmark must know of a contender."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

from bench.groups import Launch


class Unavailable(Exception):
    """This contender cannot take part here; says why and what would help."""


NOISE = "the same again in other processes: its distance from 1 is the noise"
"""What is said of a contender that is ours a second time."""


def nothing() -> None:
    """Local: for contenders that need no preparation, or leave nothing behind."""


@dataclass(frozen=True)
class Contender:
    """One way to do it. `kind` groups what the bounds speak of: `ours`, `noise` and `other` everywhere; of a reduction `gloo`,
    `mpi` and `floor` for what nobody can beat; of a training `hand`, `ddp` and `lightning`."""

    name: str
    kind: str
    about: str
    """What is called, in words."""
    start: Callable[..., list[Launch]]
    """Given the number of ranks and the seat, behind what `given` gives."""
    prepare: Callable[[], None] = nothing
    """Local, blocking: install what it needs; raises `Unavailable`."""
    clean: Callable[[], None] = nothing
    """Local: remove what its processes may leave when they are killed."""

    def given(self, *values: Any) -> Self:
        """Pure: the same, with what it is to do."""
        return replace(self, start=partial(self.start, *values))
