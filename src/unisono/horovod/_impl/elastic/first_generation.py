"""The start of the first generation: it waits for as many workers as were asked for (-np), but not for ever. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unisono.horovod._impl.elastic.elastic_worker import TOGETHER_S, Worker


@dataclass(frozen=True)
class FirstStart:
    """The workers and slots before the first generation."""

    num_wanted: int
    ready: Sequence[Worker]
    starting: Sequence[Worker]
    """Workers that are alive and have not called `hvd.init()` yet."""
    more_may_come: bool
    """Whether a slot may become free, or be found."""

    def should_wait(self, waited_s: float, start_s: float, slots_s: float, now: float) -> bool:
        """Whether to keep waiting: for `start_s` for starting workers, for `slots_s` for slots. Once as many are ready as were
        asked for, others may join later."""
        if self.starting and len(self.ready) >= self.num_wanted:
            enough_since = sorted(one.ready_at for one in self.ready)[self.num_wanted - 1]
            return waited_s < start_s and now - enough_since < TOGETHER_S
        if self.starting:
            return waited_s < start_s
        return self.more_may_come and len(self.ready) < self.num_wanted and waited_s < slots_s

    def missing_text(self) -> str:
        """Returns which workers are missing, for messages; empty if none is."""
        if len(self.ready) >= self.num_wanted:
            return ""
        late = ", ".join(map(str, self.starting))
        why = f"these have not called hvd.init() yet: {late}" if late else "there are no slots for more"
        return f"the job starts with {len(self.ready)} of {self.num_wanted} workers (-np); {why}"
