"""Blocks: all contenders at one number of ranks and one size, checked, interleaved, checked again."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.contenders.contender import Contender, Unavailable
from bench.groups import Conductor, Group, GroupFailed
from bench.machine import stolen_s
from bench.page import one_line
from bench.progress import Progress
from bench.record import Record
from bench.rounds import Samples, interleave, rounded
from bench.sizes import show_size

SEED = 20
IDLE_S = 1.0

Ask = tuple[str, dict[str, int]]
"""What a group is asked to do, and with what."""


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


def measure_blocks(
    record: Record,
    contenders: Sequence[Contender],
    num_ranks: int,
    about: Mapping[str, Mapping[str, Any]],
    effort: Effort,
    progress: Progress,
    essential: Collection[str],
    opens: bool = False,
) -> None:
    """Blocking: all blocks of `about` (key -> what it is, with its `bytes`) that `record` does not have yet, with processes started
    once for all. Contenders of which each `opens` something for a length do so before their idle time is measured.

    Raises `GroupFailed` if one of the `essential` contenders fails; another one drops out, which is recorded.
    """
    missing = {key: block for key, block in about.items() if key not in record.blocks}
    if not missing:
        return
    failed: dict[str, str] = {}
    try:
        with Conductor() as conductor:
            groups = start_all(conductor, contenders, num_ranks, essential, failed, progress)
            idle = {} if opens else idle_shares(groups)
            for key, block in missing.items():
                before, prepare_it = stolen_s(), ("prepare", {"num_bytes": block["bytes"]})
                if opens:
                    open_all(groups, block["bytes"], failed, progress, key, essential)
                    idle = idle_shares(groups)
                num_rounds, num_calls = effort.at(block["bytes"])
                samples, dropped = take_turns(
                    groups,
                    opening=(*(() if opens else (prepare_it,)), ("verify", {}), ("time", {"num_calls": 2})),
                    turn=("time", {"num_calls": num_calls}),
                    closing=(("verify", {}), ("drop", {})),
                    num_rounds=num_rounds,
                    progress=progress,
                    where=key,
                    essential=essential,
                )
                failed |= {name: one_line(reason) for name, reason in dropped.items()}
                for name in dropped:
                    del groups[name]
                record.add(key, {**block, **measured(groups, idle, before, failed, samples)})
                progress.keep(medians(key, samples))
    finally:
        for contender in contenders:
            contender.clean()


def measure_apart(
    record: Record,
    key: str,
    about: Mapping[str, Any],
    contenders: Mapping[int, Sequence[Contender]],
    warm_up: Ask,
    turn: Ask,
    num_rounds: int,
    progress: Progress,
    essential: Collection[str],
    after: Callable[[Mapping[str, Group]], Mapping[str, Any]],
) -> None:
    """Blocking: one block that `record` does not have yet, in processes of its own: contenders by their number of ranks. `after`
    asks those that stayed what they have reached."""
    if key in record.blocks:
        return
    failed: dict[str, str] = {}
    with Conductor() as conductor:
        groups: dict[str, Group] = {}
        for num_ranks, wanted in contenders.items():
            groups |= start_all(conductor, wanted, num_ranks, essential, failed, progress)
        idle, before = idle_shares(groups), stolen_s()
        samples, dropped = take_turns(groups, (warm_up,), turn, (), num_rounds, progress, key, essential)
        failed |= {name: one_line(reason) for name, reason in dropped.items()}
        groups = {name: groups[name] for name in samples}
        block = measured(groups, idle, before, failed, samples)
        record.add(key, {**about, **block, **after(groups)})
    progress.keep(medians(key, samples))


def measured(
    groups: Mapping[str, Group],
    idle: Mapping[str, float],
    stolen_before: float,
    failed: Mapping[str, str],
    samples: Mapping[str, Samples],
) -> dict[str, Any]:
    """Local: what every block keeps."""
    return {
        "versions": {name: group.versions for name, group in groups.items()},
        "idle_share_of_a_core": idle,
        "stolen_cpu_s": round(stolen_s() - stolen_before, 2),
        "failed": dict(failed),
        "times_us": rounded(samples),
    }


def medians(key: str, samples: Mapping[str, Samples]) -> str:
    """Pure: a line for the one who waits."""
    return f"{key}: {', '.join(f'{name} {sample.median:.0f}' for name, sample in samples.items())} us"


def about_sizes(num_ranks: int, sizes: Sequence[int]) -> dict[str, dict[str, int]]:
    """Pure: the blocks at one number of ranks, by their key in the raw data."""
    return {f"{num_ranks} ranks, {show_size(size)}": {"ranks": num_ranks, "bytes": size} for size in sizes}


def open_all(
    groups: dict[str, Group], num_bytes: int, failed: dict[str, str], progress: Progress, where: str, essential: Collection[str]
) -> None:
    """Blocking: all are asked to prepare vectors of a length; `groups` loses those that fail."""
    for name, group in list(groups.items()):
        progress.say(f"{where}: {name} prepares")
        try:
            group.ask("prepare", num_bytes=num_bytes)
        except GroupFailed as error:
            if name in essential:
                raise
            failed[name] = one_line(error)
            progress.keep(f"{where}: {error}")
            groups.pop(name).close()


def take_turns(
    groups: Mapping[str, Group],
    opening: Sequence[Ask],
    turn: Ask,
    closing: Sequence[Ask],
    num_rounds: int,
    progress: Progress,
    where: str,
    essential: Collection[str],
) -> tuple[dict[str, Samples], dict[str, str]]:
    """Blocking: every group is asked the opening, then its turn in each round, then the closing. Gives the samples of those that
    stayed, and why the others dropped out. A group that failed is ended."""
    failed: dict[str, str] = {}

    def attempt(name: str, *asks: Ask) -> list[list[float]]:
        """The answers to the last of them by rank; nothing if the contender fails or has failed."""
        answers: list[list[float]] = []
        if name not in failed:
            try:
                for what, arguments in asks:
                    answers = groups[name].ask(what, **arguments)
            except GroupFailed as error:
                if name in essential:
                    raise
                failed[name] = str(error)
                progress.keep(f"{where}: {error}")
                groups[name].close()
                answers = []
        return answers

    for name in groups:
        progress.say(f"{where}: {name} is checked")
        attempt(name, *opening)
    samples = interleave(
        [name for name in groups if name not in failed],
        num_rounds,
        SEED,
        lambda name: attempt(name, turn),
        lambda number: progress.say(f"{where}: round {number + 1} of {num_rounds}, {len(groups) - len(failed)} contenders"),
    )
    for name in groups:
        attempt(name, *closing)
    return {name: sample for name, sample in samples.items() if name not in failed}, failed


def prepare(wanted: Sequence[Contender], progress: Progress) -> tuple[list[Contender], dict[str, str]]:
    """Local, blocking: install what is missing; those that can take part, and why the others cannot."""
    able, absent = [], {}
    for contender in wanted:
        progress.say(f"preparing {contender.name} (the first time it is installed or compiled, which takes minutes)")
        try:
            contender.prepare()
            able.append(contender)
        except Unavailable as reason:
            absent[contender.name] = one_line(reason)
            progress.keep(f"{contender.name} takes no part: {reason}")
    return able, absent


def start_all(
    conductor: Conductor,
    contenders: Sequence[Contender],
    num_ranks: int,
    essential: Collection[str],
    failed: dict[str, str],
    progress: Progress,
) -> dict[str, Group]:
    """Blocking: the groups of those that can start; `failed` says why the others cannot."""
    groups = {}
    for contender in contenders:
        progress.say(f"{num_ranks} ranks: starting {contender.name}")
        try:
            groups[contender.name] = conductor.start(contender.name, num_ranks, contender.start)
        except GroupFailed as error:
            if contender.name in essential:
                raise
            failed[contender.name] = one_line(error)
            progress.keep(f"{num_ranks} ranks: {error}")
    return groups


def idle_shares(groups: Mapping[str, Group]) -> dict[str, float]:
    """Blocking for a second: the part of one core that each group uses while it waits for its turn; should be nothing."""
    before = {name: group.cpu_s() for name, group in groups.items()}
    start = time.monotonic()
    time.sleep(IDLE_S)
    passed = time.monotonic() - start
    return {name: round((group.cpu_s() - before[name]) / passed, 3) for name, group in groups.items()}
