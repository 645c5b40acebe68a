"""Tunes how a channel fuses and rests, by what it measures: what `HOROVOD_AUTOTUNE` asks for.

Rank 0 of the set measures bytes per second over some steps of the training and searches (`autotune_search.py`). A new setting
is told like an operation, so all ranks hear it in the same round and fuse alike from that round on.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from time import monotonic

from unisono.cluster.horovod_env import HorovodSettings
from unisono.compat.horovod.agreement import Agreement
from unisono.compat.horovod.autotune_log import Log
from unisono.compat.horovod.autotune_search import Setting, Verdict, search
from unisono.compat.horovod.negotiation import Negotiation
from unisono.compat.horovod.request import SETTINGS, Request


class Tuning:
    """A channel's view of it. This one, where it is off, changes nothing."""

    def tell(self, negotiation: Negotiation) -> None:
        """Before a round: what all shall set, if anything."""

    def heard(self, told: Sequence[Sequence[Request]], settings: HorovodSettings) -> HorovodSettings:  # noqa: ARG002
        """After a round: the settings from this round on, the same on all ranks."""
        return settings

    def carried(self, agreements: Iterable[Agreement]) -> None:
        """They are done."""

    def close(self) -> None:
        """Nothing more comes."""


UNTUNED = Tuning()


class Follower(Tuning):
    """Does as it is told."""

    def heard(self, told: Sequence[Sequence[Request]], settings: HorovodSettings) -> HorovodSettings:
        for request in told[0] if told else ():
            if request.kind == SETTINGS:
                return replace(settings, fusion_threshold_bytes=request.root, cycle_time_s=request.prescale)
        return settings


class Leader(Follower):
    """Rank 0 of the set: measures, searches and tells."""

    def __init__(self, settings: HorovodSettings, log: Log) -> None:
        self._log = log
        self._start = Setting(settings.fusion_threshold_bytes, settings.cycle_time_s)
        self._search = search(self._start, settings.autotune_warmup_samples, settings.autotune_max_samples, settings.autotune_noise)
        self._meter = Meter(settings.autotune_steps_per_sample)
        self._setting = next(self._search)
        self._is_untold = False
        self._verdict: Verdict | None = None
        self._num_samples = 0

    def tell(self, negotiation: Negotiation) -> None:
        if self._is_untold:
            setting = self._setting
            # A request has a place for a whole number and one for a number; its name must be like no operation's.
            negotiation.submit(Request(SETTINGS, SETTINGS, root=setting.fusion_threshold_bytes, prescale=setting.cycle_time_s))
            self._is_untold = False
            self._meter.begin()

    def carried(self, agreements: Iterable[Agreement]) -> None:
        if self._verdict is not None:
            return
        score = self._meter.sample(agreements, monotonic())
        if score is None:
            return
        self._num_samples += 1
        self._log.add(self._setting, score)
        before = self._setting
        try:
            self._setting = self._search.send(score)
        except StopIteration as end:
            self._verdict = end.value
            self._setting = end.value.kept
            self._log.add(end.value.kept, end.value.score)
            self._log.close()
            _say(told_of(end.value, self._start))
        self._is_untold = self._setting != before
        self._meter.begin()

    def close(self) -> None:
        if self._verdict is None:
            _say(f"autotune was not finished after {self._num_samples} samples; nothing was kept (HOROVOD_AUTOTUNE); train longer")
            self._log.close()


class Meter:
    """Bytes per microsecond over some steps. Pure: it is told the time. A step ends where a name comes again."""

    def __init__(self, num_steps: int) -> None:
        self._num_steps = num_steps
        self.begin()

    def begin(self) -> None:
        """Forget what was counted: the next sample begins with the next step."""
        self._names: set[str] = set()
        self._num_done = -1  # the step in which we begin is not whole
        self._num_bytes = 0
        self._began_at = 0.0

    def sample(self, agreements: Iterable[Agreement], now: float) -> float | None:
        """The score, once the steps are over: what came in this round belongs to the next. Only operations that their user named
        make steps, as the others never come again."""
        done = [agreement for agreement in agreements if agreement.error is None]
        names = {agreement.name for agreement in done if agreement.first.comes_again}
        if not self._names.isdisjoint(names):
            self._names.clear()
            self._num_done += 1
            if self._num_done == 0:
                self._num_bytes, self._began_at = 0, now
            elif self._num_done == self._num_steps and now > self._began_at and self._num_bytes:
                return self._num_bytes / (now - self._began_at) / 1e6
        self._names |= names
        self._num_bytes += sum(agreement.num_bytes for agreement in done)
        return None


def told_of(verdict: Verdict, start: Setting) -> str:
    """Pure: the result in a sentence."""
    gain = f"{verdict.best_score / verdict.start_score - 1:+.0%}" if verdict.start_score else "faster"
    if verdict.kept != start:
        return f"autotune keeps {verdict.kept}: {gain} throughput against {start}"
    if verdict.best != start:
        return f"autotune stays with {start}: the best it found, {verdict.best}, is not better beyond the noise ({gain})"
    return f"autotune stays with {start}: it found nothing better"


def _say(sentence: str) -> None:
    print(f"unisono: {sentence}", file=sys.stderr, flush=True)
