"""What a save costs a training: arithmetic on the times of single steps.

A turn is a row of steps with one save in it. Steps before the save, and those that begin after it is done, are quiet; their median
is what a step takes. The step with the save in it is blocked by what it takes longer; so much slower are the steps that begin
while it is still being written.

A step ends after its save, so what a save in the background takes from the next steps is not in the one with the save.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench.rounds import Floats


@dataclass(frozen=True)
class SaveCosts:
    """Milliseconds by round; the first round has the first save, for which memory and files are new."""

    step: Floats
    blocked: Floats
    slower: Floats
    """All steps during the write together."""
    whole: Floats
    """From the beginning of the save until it is done."""
    num_cut: int
    """Writes that ended after the last step of their turn, whose `slower` is not whole therefore."""

    @property
    def both(self) -> Floats:
        return self.blocked + self.slower


def save_costs(times_us: Sequence[Sequence[float]], saves: Mapping[str, Sequence[float]], save_at: int) -> SaveCosts:
    """Pure: from the times of steps by round, with the save at the end of step `save_at` of each. `saves` has, where a save goes on
    in the background, how long each took until it was done (`whole_us`) and how long the training waited (`own_us`). The first step
    of a turn is not counted: it fetches what others pushed out of the caches."""
    in_background = bool(saves["whole_us"])
    rows, num_cut = [], 0
    for number, times in enumerate(np.asarray(times_us, dtype=np.float64) / 1e3):
        before, saving, after = times[1:save_at], times[save_at], times[save_at + 1 :]
        done = (saves["whole_us"][number] - saves["own_us"][number]) / 1e3 if in_background else 0.0
        written = np.cumsum(after) - after < done
        step = np.median(np.concatenate([before, after[~written]]))
        blocked = saving - step
        whole = saves["whole_us"][number] / 1e3 if in_background else blocked
        num_cut += int(done > after.sum())
        rows.append((step, blocked, (after[written] - step).sum(), whole))
    step_ms, blocked_ms, slower_ms, whole_ms = np.asarray(rows).T
    return SaveCosts(step_ms, blocked_ms, slower_ms, whole_ms, num_cut)
