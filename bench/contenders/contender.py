"""What the benchmark must know of a contender."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Self

from bench.groups import ROOT, Launch


class Unavailable(Exception):
    """This contender cannot take part here; says why and what would help."""


def run_or_leave(what: str, command: Sequence[str], limit_s: float, variables: Mapping[str, str] = MappingProxyType({})) -> None:
    """Local, blocking: a command without which a contender cannot take part. Raises `Unavailable` with the line that tells why."""
    try:
        environment = {**os.environ, **variables}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"cannot {what} within {limit_s:g} s") from error
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()] or ["it printed nothing"]
        raise Unavailable(f"cannot {what}: {next((line for line in said if 'error' in line.lower()), said[-1])}")


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
    """Given the number of ranks and the slot, behind what `given` gives."""
    prepare: Callable[[], None] = nothing
    """Local, blocking: install what it needs; raises `Unavailable`."""
    clean: Callable[[], None] = nothing
    """Local: remove what its processes may leave when they are killed."""

    def given(self, *values: Any) -> Self:
        """Pure: the same, with what it is to do."""
        return replace(self, start=partial(self.start, *values))
