"""A study whose processes are killed at random moments, and whose journal is damaged; every trial must have its result in the end.

While kills go on trials pass a gate, so that some are under way at each kill, however many kills there are.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep

import psutil

from tests.faults.programs.searched import value_of
from tests.system.processes import is_running, plain_environment
from tests.system.studies import all_ended_once, records
from unisono.files.journal import SUFFIX, Reader
from unisono.tuning.study.study import BEGAN, COMPLETE, ENDED, GIVEN_BACK

PROGRAM = Path(__file__).with_name("programs") / "searched.py"
NUM_TRIALS = 60
BEFORE_THE_LAST_KILL = 50
"""Of NUM_TRIALS: so many may have ended by then."""
WORKER, FORK_SERVER, JOB = "worker", "fork server", "job"
HOW_OFTEN = {WORKER: 12, FORK_SERVER: 4, JOB: 4}
LATEST_S = {WORKER: 0.3, FORK_SERVER: 0.8, JOB: 2.0}
"""How late a kill comes at most after its victim was seen; of a job, which was perhaps started just before, its start is within."""
LIMIT_S = 60.0
"""Within which the next victim must be there, and the end come when nobody is killed any more."""
END_LIMIT_S = 10.0
"""Within which all processes of a killed job must be gone."""
LOOK_EVERY_S = 0.01


@dataclass
class Study:
    """The same command, attempt after attempt."""

    folder: Path
    draw: random.Random
    num_trials: int = NUM_TRIALS
    kills: Counter[str] = field(default_factory=Counter)
    num_attempts: int = 0
    _process: subprocess.Popen[bytes] | None = None
    _progress: Reader | None = None
    _num_ended: int = 0
    _num_begun: int = 0
    _begun_before: int = 0
    """Trials that other attempts have begun."""

    @property
    def out(self) -> Path:
        return self.folder / "study"

    @property
    def gate(self) -> Path:
        return self.folder / "gate"

    @property
    def printed(self) -> str:
        """What the last attempt has said."""
        return self._output().read_text(errors="replace")

    def _output(self) -> Path:
        return self.folder / f"attempt-{self.num_attempts}.txt"

    @contextmanager
    def begun(self) -> Iterator[Study]:
        """The first attempt; whatever runs at the end is killed."""
        try:
            self.start()
            yield self
        finally:
            if self._process is not None:
                self._process.kill()
                self._process.wait(END_LIMIT_S)

    def start(self) -> None:
        """Local: another attempt."""
        self.num_attempts += 1
        self._read_journal()
        self._begun_before = self._num_begun
        command = ["setpriv", "--pdeathsig", "KILL", sys.executable, str(PROGRAM), str(self.out), str(self.num_trials), "2"]
        with self._output().open("wb") as output:
            self._process = subprocess.Popen(
                command,
                env={**plain_environment(), "SEARCH_GATE": str(self.gate)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def expect_running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        assert self._process.poll() is None, f"attempt {self.num_attempts} ended with {self._process.returncode}:\n{self.printed}"
        return self._process

    def finish(self, limit_s: float = LIMIT_S) -> None:
        """Blocking: nobody is killed any more."""
        self.gate.touch()
        process = self.expect_running()
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it had not ended after {limit_s:g} s:\n{self.printed}") from None
        assert code == 0, f"attempt {self.num_attempts} ended with {code}:\n{self.printed}"

    # ---- kills -----------------------------------------------------------------------------------------------------

    def kill(self, victim: str, may_have_ended: int) -> None:
        """Blocking: until the victim is there, a drawn moment has come, and it is killed; a job begins anew."""
        found = self._found(victim, may_have_ended)
        self._let_go(may_have_ended, monotonic() + self.draw.uniform(0.0, LATEST_S[victim]))
        self.kills[victim] += 1
        if victim == JOB:
            self.end_attempt()
            self.start()
        else:
            with suppress(ProcessLookupError):  # it may have gone with another
                os.kill(found, signal.SIGKILL)

    def end_attempt(self) -> None:
        """Blocking: the process that coordinates is killed, and all others end with it."""
        process = self.expect_running()
        others: list[psutil.Process] = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait(END_LIMIT_S)
        deadline = monotonic() + END_LIMIT_S
        while left := [one.pid for one in others if is_running(one.pid)]:
            assert monotonic() < deadline, f"processes {left} outlive their job"
            sleep(LOOK_EVERY_S)

    def until(self, condition: Callable[[], bool], may_have_ended: int) -> None:
        """Blocking: until something is so, while trials end up to that number."""
        deadline = monotonic() + LIMIT_S
        while not condition():
            self.expect_running()
            assert monotonic() < deadline, f"nothing happens in attempt {self.num_attempts}:\n{self.printed}"
            self._open_or_shut(may_have_ended)
            sleep(LOOK_EVERY_S)

    def num_ended(self) -> int:
        """Local: results that were ever written."""
        self._read_journal()
        return self._num_ended

    def _read_journal(self) -> None:
        if self._progress is None:
            self._progress = Reader(self.out / "journal")
        events = Counter(one.value["event"] for one in self._progress.read())
        self._num_ended += events[ENDED]
        self._num_begun += events[BEGAN]

    def _found(self, victim: str, may_have_ended: int) -> int:
        found: list[int] = []

        def is_there() -> bool:
            found[:] = self._processes(victim)
            return bool(found)

        self.until(is_there, may_have_ended)
        return self.draw.choice(found)

    def _processes(self, victim: str) -> list[int]:
        job = self.expect_running()
        if victim == JOB:
            return [job.pid]
        self._read_journal()
        if self._num_begun == self._begun_before:
            return []  # what is there may be the process that tries the task out, without which there is no study
        with suppress(psutil.NoSuchProcess):
            fork_servers = psutil.Process(job.pid).children()
            workers = [child.pid for one in fork_servers for child in one.children()]
            if victim == WORKER or not workers:  # one that still loads is not yet known to be able to
                return workers
            return [one.pid for one in fork_servers]
        return []

    def _let_go(self, may_have_ended: int, until: float) -> None:
        while monotonic() < until:
            self._open_or_shut(may_have_ended)
            sleep(min(LOOK_EVERY_S, max(0.0, until - monotonic())))

    def _open_or_shut(self, may_have_ended: int) -> None:
        if self.num_ended() < may_have_ended:
            self.gate.touch()
        else:
            self.gate.unlink(missing_ok=True)

    # ---- what became of it -----------------------------------------------------------------------------------------

    def expect_all_right(self) -> str:
        """Every trial has one result, which is what its settings give. In a line what happened."""
        results = all_ended_once(self.out, self.num_trials)
        for number, result in results.items():
            assert result.state == COMPLETE, f"trial {number}: {result}"
            asked = result.details["asked"]
            assert set(asked) == {"x", "kind", "steps"} and -1 <= asked["x"] <= 1 and 1 <= asked["steps"] <= 9, asked
            assert result.values == (value_of(**asked),), f"trial {number}: {result}"
        assert f"done: {self.num_trials} complete" in self.printed, self.printed
        times_begun = Counter(one["trial"] for one in records(self.out, BEGAN))
        given_back = len(records(self.out, GIVEN_BACK))
        kills = ", ".join(f"{number} x {victim}" for victim, number in self.kills.items())
        return (
            f"{self.num_trials} trials, killed: {kills}; {self.num_attempts} attempts; {given_back} given back, "
            f"begun up to {max(times_begun.values())} times, each ended once"
        )


def happen(folder: Path, seed: int, num_kills: int) -> str:
    """Blocking: so many kills, then the end. Gives a line about it."""
    draw = random.Random(seed)
    with Study(folder, draw).begun() as study:
        for number in range(num_kills):
            victim = draw.choices(list(HOW_OFTEN), list(HOW_OFTEN.values()))[0]
            study.kill(victim, BEFORE_THE_LAST_KILL * (number + 1) // num_kills)
        study.finish()
    return study.expect_all_right()


# ---- a damaged journal -----------------------------------------------------------------------------------------------


def damage(journal: Path, draw: random.Random, spared: int) -> Path:
    """Local: bytes of one file are changed, or it is cut within a record. The first `spared` records stay, and one that is cut is
    never the first, as who has written nothing may be about to. Gives the file."""
    found = [(file, wholes) for file in sorted(journal.glob(f"*{SUFFIX}")) if len(wholes := whole_records(file)) > 1]
    file, wholes = draw.choice(found)
    content = bytearray(file.read_bytes())
    if draw.random() < 0.5:
        places = [place for first, end in wholes[spared:] for place in range(first, end)]
        for place in draw.sample(places, draw.randint(1, 3)):
            content[place] ^= draw.randint(1, 255)
    else:
        first, end = draw.choice(wholes[1:])
        del content[draw.randrange(first + 1, end) :]
    file.write_bytes(content)
    return file


def whole_records(file: Path) -> Sequence[tuple[int, int]]:
    """Local: where records begin, and where their last byte is, without which nothing would be lost."""
    return [found.span() for found in re.finditer(rb"\x1e[^\x1e\n]+(?=\n)", file.read_bytes())]
