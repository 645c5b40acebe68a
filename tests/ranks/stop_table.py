"""A table of trainings that are stopped: rows are launchers, cells the signal that stops them and what comes of it.

The training is that of programs/held_up.py, which waits in the middle of a step.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from tests.system.fork_server import ForkServer
from tests.system.processes import Outcome, within
from tests.system.side_by_side import run_side_by_side
from unisono.training.run_folder.run_status import KILLED

TASK = Path(__file__).parent / "programs" / "held_up.py"
LIMIT_S = 100.0
STOPPED = 75
TOLD_IN, LAST_SAVED = 12, 10
"""The step, counted from 0, in which the training waits, and the last periodic checkpoint (--checkpoint-every 5) before it."""
STOPS_AT = TOLD_IN + 2
"""Steps that are done then: the one in hand, and the next, with whose gradient the wish travels."""


@dataclass(frozen=True)
class Training:
    """One cell's own copy of the task, and its run directory."""

    folder: Path
    num_workers: int

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def prepare(self, hold: str) -> None:
        self.folder.mkdir()
        shutil.copy(TASK, self.folder / "task.py")
        if hold:
            (self.folder / "hold").write_text(hold)

    def let_go(self) -> None:
        (self.folder / "hold").unlink(missing_ok=True)

    def command(self, *options: str) -> list[str]:
        """With one thread under every launcher: another number of them rounds otherwise."""
        return ["train", str(self.folder / "task.py"), f"--out={self.run}", "--checkpoint-every=5", "--threads=1", *options]

    def is_held(self) -> bool:
        """Whether all workers are in the middle of the step, and the checkpoint before it is on the disk."""
        is_saved = (self.run / "checkpoints" / f"step-{LAST_SAVED:08}").is_dir()
        return is_saved and len(list(self.folder.glob("waits-*"))) == self.num_workers

    def last_checkpoint(self) -> int:
        return int(max(self.run.glob("checkpoints/step-*")).name.removeprefix("step-"))

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run / "status.json").read_text())
        return found

    def result(self) -> Mapping[str, Any]:
        """What must not depend on stops and restarts."""
        found = json.loads((self.run / "summary.json").read_text())
        return {name: found[name] for name in ("reason", "steps", "weights_sha256", "metrics", "best_epoch", "num_skipped_updates")}


class Started(Protocol):
    """A training that runs: a program or a batch job."""

    def finish(self, limit_s: float) -> Outcome: ...


@dataclass(frozen=True)
class Row:
    """Who starts the training."""

    name: str
    num_workers: int
    start: Callable[[Training, Sequence[str]], AbstractContextManager[Started]]
    """Is given more options of `unisono train`."""


@dataclass(frozen=True)
class Cell:
    """What tells the training to stop, and what comes of it."""

    name: str
    tell: Callable[[Any, Training], object]
    """Is given what was started, while all workers wait in a step."""
    code: int | None
    """None where there is none."""
    is_saved: bool = True
    """Else the workers are killed, and the last periodic checkpoint is what is left."""
    why: str = ""
    """What the training says that it was told by."""
    is_quick: bool = False
    """Whether it is also played where there is no time for all."""
    options: Sequence[str] = ()
    pace_s: float = 0.0
    """What each step takes, where the training does not wait in one."""

    @property
    def hold(self) -> str:
        return f"pace {self.pace_s}" if self.pace_s else "until stop requested" if self.is_saved else "for good"


@dataclass
class Table:
    """Plays cells, and knows how an undisturbed run ends on so many workers."""

    folder: Path
    fork_server: ForkServer
    undisturbed: dict[int, Mapping[str, Any]] = field(default_factory=dict)

    def play(self, row: Row, cells: Sequence[Cell], wholly: bool) -> None:
        """Blocking: all cells or the quick ones, side by side; all that are wrong are told."""
        wrong: list[str] = []

        def try_out(cell: Cell) -> None:
            try:
                self._play(row, cell, wholly)
            except AssertionError as error:
                wrong.append(str(error))

        run_side_by_side([(row.num_workers, partial(try_out, cell)) for cell in cells if wholly or cell.is_quick])
        assert not wrong, "\n\n".join(wrong)

    def _play(self, row: Row, cell: Cell, wholly: bool) -> None:
        name = f"{row.name} {cell.name} {'all' if wholly else 'some'}".replace(" ", "_")
        training = Training(self.folder / name, row.num_workers)
        training.prepare(cell.hold)
        with row.start(training, cell.options) as started:
            if not cell.pace_s and not within(LIMIT_S, training.is_held):
                raise AssertionError(f"{name}: not in the middle of the training: {started.finish(0.0)}")
            cell.tell(started, training)
            ended = started.finish(LIMIT_S)
        check_stop(cell, training, ended)
        stopped_at = training.last_checkpoint()
        training.let_go()
        if wholly:
            with row.start(training, cell.options) as started:
                again = started.finish(LIMIT_S)
        else:
            again = self.train(training, *cell.options)
        assert again.code == 0, f"{name}: {again}"
        lives = training.status()["lives"]
        assert [life["first_step"] for life in lives] == [0, stopped_at], f"{name}: {lives}"
        assert cell.is_saved or lives[0]["reason"] == KILLED, f"{name}: {lives}"
        result, expected = training.result(), self.undisturbed[row.num_workers]
        assert result == expected, f"{name}: {result} instead of {expected}"

    def train(self, training: Training, *options: str) -> Outcome:
        """Blocking: to the end."""
        command = ["-m", "unisono.cli", *training.command(*options)]
        ended = self.fork_server.run(command, training.num_workers, "shm", LIMIT_S)
        return Outcome(" ".join(command), ended.exit_code, ended.output)


def check_stop(cell: Cell, training: Training, ended: Outcome) -> None:
    where = f"{training.name}: {training.status()}\n{ended}"
    status, last = training.status(), training.last_checkpoint()
    assert cell.code is None or ended.code == cell.code, where
    if cell.is_saved:
        assert (status["state"], status["exit_code"], status["step"]) == ("stopped", STOPPED, last), where
        assert cell.pace_s or last == STOPS_AT, f"step {last}, {where}"
        assert f"stopped ({cell.why}" in ended.output, where
    else:
        assert last == LAST_SAVED, f"step {last}, {where}"
