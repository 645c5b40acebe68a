"""Blocks: all contenders at one number of ranks and one size, checked, interleaved, checked again."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from bench.contenders.contender import Contender, Unavailable
from bench.groups import Conductor, Group, GroupFailed
from bench.machine import stolen_s
from bench.measurement import Measurement
from bench.page import one_line
from bench.progress import Progress
from bench.rounds import interleave, rounded
from bench.sizes import show_size

SEED = 20
IDLE_S = 1.0

Ask = tuple[str, Mapping[str, float]]
"""What a group is asked to do, and with what."""
CLOSING: Sequence[Ask] = (("verify", {}), ("drop", {}))
"""After timed calls: sums are checked again, and vectors given back."""


@dataclass(frozen=True)
class Effort:
    """How often: rounds and calls in a round, for vectors up to `short_bytes` and for longer ones."""

    short_bytes: int
    short_rounds: int
    short_calls: int
    long_rounds: int
    long_calls: int

    def at(self, num_bytes: int) -> tuple[int, int]:
        """Rounds and calls for vectors of this length."""
        if num_bytes <= self.short_bytes:
            return self.short_rounds, self.short_calls
        return self.long_rounds, self.long_calls


FULL = Effort(4_200_000, 60, 10, 20, 3)
QUICK = Effort(4_200_000, 3, 2, 2, 1)


class Field:
    """Contenders whose processes live at the same time, asleep but for the one whose turn it is. One that fails leaves the field,
    and `failed` says why; if it is `essential`, `GroupFailed` is raised."""

    def __init__(self, conductor: Conductor, progress: Progress, essential: Collection[str]) -> None:
        self.groups: dict[str, Group] = {}
        self.failed: dict[str, str] = {}
        self._conductor, self._progress, self._essential = conductor, progress, essential

    def start(self, contenders: Iterable[Contender], num_ranks: int) -> None:
        """Blocking: the groups of those that can start."""
        for contender in contenders:
            self._progress.say(f"{num_ranks} ranks: starting {contender.name}")
            try:
                self.groups[contender.name] = self._conductor.start(contender.name, num_ranks, contender.start)
            except GroupFailed as error:
                self._leave(contender.name, f"{num_ranks} ranks", error)

    def ask_each(self, where: str, *asks: Ask) -> None:
        """Blocking: one group after the other does all that is asked."""
        for name in list(self.groups):
            self._progress.say(f"{where}: {name} is checked")
            self._ask(where, name, *asks)

    def ask_together(self, where: str, what: str) -> None:
        """Blocking: all groups do it at the same time."""
        self._progress.say(f"{where}: {what} of {len(self.groups)} contenders")
        with ThreadPoolExecutor(max(1, len(self.groups))) as pool:
            for _ in pool.map(lambda name: self._ask(where, name, (what, {})), list(self.groups)):
                pass

    def measure(
        self,
        key: str,
        opening: Sequence[Ask],
        turn: Ask,
        closing: Sequence[Ask],
        num_rounds: int,
        since: tuple[Mapping[str, float], float],
    ) -> dict[str, Any]:
        """Blocking: every group has its turn in each round; what every block keeps. `since`: idle shares, and CPU seconds stolen,
        before it."""
        idle, stolen_before = since
        self.ask_each(key, *opening)
        samples = interleave(
            list(self.groups),
            num_rounds,
            SEED,
            lambda name: self._ask(key, name, turn),
            lambda number: self._progress.say(f"{key}: round {number + 1} of {num_rounds}, {len(self.groups)} contenders"),
        )
        self.ask_each(key, *closing)
        samples = {name: samples[name] for name in self.groups}
        medians = ", ".join(f"{name} {sample.median:.0f}" for name, sample in samples.items())
        self._progress.keep(f"{key}: {medians} us")
        return {
            "versions": {name: group.versions for name, group in self.groups.items()},
            "idle_share_of_a_core": idle,
            "stolen_cpu_s": round(stolen_s() - stolen_before, 2),
            "failed": dict(self.failed),
            "times_us": rounded(samples),
        }

    def idle_shares(self) -> dict[str, float]:
        """Blocking for a second: the part of one core that each group uses while it waits for its turn; should be nothing."""
        before = {name: group.cpu_s() for name, group in self.groups.items()}
        start = time.monotonic()
        time.sleep(IDLE_S)
        passed = time.monotonic() - start
        return {name: round((group.cpu_s() - before[name]) / passed, 3) for name, group in self.groups.items()}

    def _ask(self, where: str, name: str, *asks: Ask) -> list[list[float]]:
        """The answers to the last of them by rank; nothing if the contender fails."""
        answers: list[list[float]] = []
        try:
            for what, arguments in asks:
                answers = self.groups[name].ask(what, **arguments)
        except GroupFailed as error:
            self._leave(name, where, error)
            return []
        return answers

    def _leave(self, name: str, where: str, error: GroupFailed) -> None:
        if name in self._essential:
            raise error
        self.failed[name] = one_line(error)
        self._progress.keep(f"{where}: {error}")
        if name in self.groups:
            self.groups.pop(name).close()


class Blocks:
    """All blocks of one benchmark, and how it ends. Those that an interrupted run has left are not measured again."""

    def __init__(self, measurement: Measurement, settings: Mapping[str, Any], essential: Collection[str]) -> None:
        self.absent: dict[str, str] = {}
        """Contenders that cannot take part here, and why."""
        self.record = measurement.record(settings)
        self.progress = measurement.progress
        self._measurement, self._essential = measurement, essential

    def able(self, wanted: Iterable[Contender]) -> list[Contender]:
        """Local, blocking: those that can take part; what they need is installed where it is missing."""
        able = []
        for contender in wanted:
            if contender.name in self.absent:
                continue
            self.progress.say(f"preparing {contender.name} (the first time it is installed or compiled, which takes minutes)")
            try:
                contender.prepare()
                able.append(contender)
            except Unavailable as reason:
                self.absent[contender.name] = one_line(reason)
                self.progress.keep(f"{contender.name} takes no part: {reason}")
        return able

    def field(self, conductor: Conductor) -> Field:
        """Local: an empty one."""
        return Field(conductor, self.progress, self._essential)

    def at_sizes(
        self,
        contenders: Sequence[Contender],
        num_ranks: int,
        about: Mapping[str, Mapping[str, Any]],
        effort: Effort,
        opens: bool = False,
    ) -> None:
        """Blocking: all blocks of `about` (key -> what it is, with its `bytes`), with processes started once for all. Contenders of
        which each `opens` something for a length do so before their idle time is measured."""
        missing = {key: block for key, block in about.items() if self.record.lacks(key)}
        if not missing:
            return
        try:
            with Conductor() as conductor:
                field = self.field(conductor)
                field.start(contenders, num_ranks)
                idle = {} if opens else field.idle_shares()
                for key, block in missing.items():
                    stolen_before = stolen_s()
                    opening: list[Ask] = [("prepare", {"num_bytes": block["bytes"]})]
                    if opens:
                        field.ask_each(key, *opening)
                        idle, opening = field.idle_shares(), []
                    num_rounds, num_calls = effort.at(block["bytes"])
                    opening += [("verify", {}), ("time", {"num_calls": 2})]
                    turn = ("time", {"num_calls": num_calls})
                    found = field.measure(key, opening, turn, CLOSING, num_rounds, (idle, stolen_before))
                    self.record.add(key, {**block, **found})
        finally:
            for contender in contenders:
                contender.clean()

    def apart(
        self,
        key: str,
        about: Mapping[str, Any],
        contenders: Mapping[int, Iterable[Contender]],
        opening: Sequence[Ask],
        turn: Ask,
        num_rounds: int,
        closing: Sequence[Ask] = (),
        after: Callable[[Mapping[str, Group]], Mapping[str, Any]] = lambda _: {},
    ) -> None:
        """Blocking: one block in processes of its own: contenders by their number of ranks. `after` asks those that stayed what
        they have reached."""
        if not self.record.lacks(key):
            return
        with Conductor() as conductor:
            field = self.field(conductor)
            for num_ranks, wanted in contenders.items():
                field.start(wanted, num_ranks)
            found = field.measure(key, opening, turn, closing, num_rounds, (field.idle_shares(), stolen_s()))
            self.record.add(key, {**about, **found, **after(field.groups)})

    def finish(self, **more: Any) -> None:
        """Local: write raw data and page."""
        self._measurement.finish(**{"absent": self.absent, "blocks": self.record.asked(), **more})


def about_sizes(num_ranks: int, sizes: Sequence[int]) -> dict[str, dict[str, int]]:
    """Pure: the blocks at one number of ranks, by their key in the raw data."""
    return {f"{num_ranks} ranks, {show_size(size)}": {"ranks": num_ranks, "bytes": size} for size in sizes}


def described(contenders: Iterable[Any], *names: str) -> dict[str, dict[str, Any]]:
    """Pure: what the raw data say of contenders: kind, what they call, and other fields of these names."""
    return {one.name: {name: getattr(one, name) for name in ("kind", "about", *names)} for one in contenders}
