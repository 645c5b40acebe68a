"""Trains a small task undisturbed, then again and again with SIGKILL at random moments, and compares the two bit for bit.

.venv/bin/python -m tests.faults.kill_fuzz --kills 200 --seed 1 --out runs/kill_fuzz
.venv/bin/python -m tests.faults.kill_fuzz --kills 30 --seed 1 --change-workers --out runs/kill_fuzz
.venv/bin/python -m tests.faults.kill_fuzz --kills 50 --seed 1 --algorithm gem --processes 3 --out runs/kill_fuzz
.venv/bin/python -m tests.faults.kill_fuzz --kills 0 --out runs/kill_fuzz --page docs/results/kill_fuzz.md

A training through a server ends differently each time: such a run is compared with its replay.

Every attempt of a run is started by the same command in the same directory. Where a run is finished before it was killed often
enough another one begins. The sittings of one --out are collected in record.json there; --page makes a page of them, and
--page-only writes that page again from its raw data.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any

from tests.faults.kill_attempt import END_LIMIT_S, Attempt, Command, drafts_in, run_attempt, run_undisturbed
from tests.faults.kill_plan import COMMAND, FORK_SERVER, LOCK_STEP, ONE, Kill, drawn
from tests.faults.kill_verdict import Run, damaged_checkpoints, deviation, problems
from tests.system.fork_server import ForkServer, fork_server
from unisono.files.step_folders import StepFolders
from unisono.observe.jsonl import read_lines

TASK = Path(__file__).parent / "programs" / "traced_digits.py"
EVERY = "4"
"""Steps between checkpoints."""
NO_SHARDS = ("--set", "model.dropout=0", "--set", "model.norm=False")
"""Without what depends on how a batch is divided among workers."""
CHANGES = (2, 1, 3)
ONE_THREAD = ("--threads", "1")
"""So that workers of their own and virtual workers in one process compute the same bits."""


@dataclass
class Fuzz:
    """One training, undisturbed and killed. `happen` raises AssertionError for whatever is not as it should be."""

    folder: Path
    fork_server: ForkServer
    workers: Sequence[int]
    """Of one attempt after another; where they differ, weights are the same only to rounding."""
    options: Sequence[str] = ()
    started_by: str = COMMAND
    """The attempts that are not killed."""
    algorithm: str = LOCK_STEP
    """Or one with a server, which is one of the processes."""
    end_limit_s: float = END_LIMIT_S
    """Within which all must have ended after a kill."""
    say: Callable[[str], object] = print
    kills: list[dict[str, Any]] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._start_s = {FORK_SERVER: 0.7, COMMAND: 4.0}
        self._same_workers = len({*self.workers}) == 1
        self._is_replayed = self.algorithm != LOCK_STEP

    def happen(self, plan: Iterable[Kill], deadline: float = float("inf")) -> None:
        """Blocking: all kills of the plan, or as many as fit in before the deadline, and every run to its end."""
        self.reference = self._undisturbed()
        self._begin_run()
        for kill in plan:
            if monotonic() > deadline:
                break
            while not self._killed(kill):
                self._check()
                self._begin_run()
                kill = replace(kill, share=kill.share / 2)  # the run was over before that moment
        code, output = run_undisturbed(self._command, self.started_by, self.workers[0], self.fork_server, EVERY)
        assert code == 0, f"the last attempt of {self._command.out} ended with {code} and printed:\n{output}"
        self._check()

    def _undisturbed(self) -> Run:
        """It saves nothing before its end: that saving changes nothing is shown too."""
        command = self._at("undisturbed")
        shutil.rmtree(command.out, ignore_errors=True)
        code, output = run_undisturbed(command, self.started_by, self.workers[0], self.fork_server, "never")
        assert code == 0, f"the undisturbed run ended with {code} and printed:\n{output}"
        return Run.read(command.out)

    def _replayed(self) -> Run:
        """The same order of calls, by virtual workers in one process that nobody disturbs."""
        out, simulate = self._command.out, ("--simulate", str(self.workers[0] - 1))
        command = self._at("replayed", *simulate, "--replay", str(out))
        shutil.rmtree(command.out, ignore_errors=True)
        code, output = run_undisturbed(command, self.started_by, 1, self.fork_server, "never")
        assert code == 0, f"the replay of {out} ended with {code} and printed:\n{output}"
        return Run.read(command.out)

    def _at(self, name: str, *more: str) -> Command:
        plain = () if self._same_workers else NO_SHARDS
        through_server = ("--algorithm", self.algorithm, *ONE_THREAD) if self._is_replayed else ()
        return Command(TASK, self.folder / name, (*self.options, *plain, *through_server, *more), self.folder / "trace")

    def _begin_run(self) -> None:
        self._command = self._at(f"killed-{len(self.runs)}")
        shutil.rmtree(self._command.out, ignore_errors=True)
        self._num_kills = 0

    def _killed(self, kill: Kill) -> bool:
        """One attempt; False if the run was finished before the moment came."""
        out = self._command.out
        before, begun, left_before = newest(out), first_steps(out), drafts_in(out)
        usual_start_s, last_step = self._start_s[kill.started_by], self.reference.summary["steps"]
        attempt = run_attempt(self._command, kill, self.fork_server, EVERY, usual_start_s, last_step, self.end_limit_s)
        if attempt.first_step_s is not None:
            self._start_s[kill.started_by] = attempt.first_step_s
        now = first_steps(out)
        first_step = now[-1] if len(now) > len(begun) else None
        self._expect(attempt, kill, before, first_step)
        if attempt.was_killed:
            self._num_kills += 1
            self.kills.append(self._row(attempt, kill, first_step, left_before))
            self.say(f"{len(self.kills):5}  {line_of(self.kills[-1])}")
        return attempt.was_killed

    def _expect(self, attempt: Attempt, kill: Kill, before: int, first_step: int | None) -> None:
        where = f"run {self._command.out}, {kill}, after {attempt.after_s:.3f} s: "
        assert attempt.was_killed or attempt.code == 0, f"{where}ended with {attempt.code} and printed:\n{attempt.output}"
        assert "Traceback" not in attempt.output, f"{where}{attempt.output}"
        assert not (wrong := [*damaged_checkpoints(self._command.out)]), f"{where}{wrong}"
        assert newest(self._command.out) >= before, f"{where}the newest checkpoint was of step {before}, and is gone"
        assert first_step in (None, before), f"{where}it resumed from step {first_step}, the newest checkpoint was of {before}"
        in_the_middle = b"t" in attempt.trace and newest(self._command.out) < self.reference.summary["steps"]
        if kill.victim == ONE and kill.workers > 1 and kill.moment != "starting" and in_the_middle:
            assert f"rank {kill.rank}" in attempt.output, f"{where}nobody named rank {kill.rank}:\n{attempt.output}"

    def _row(self, attempt: Attempt, kill: Kill, first_step: int | None, left_before: set[str]) -> dict[str, Any]:
        return {
            "run": len(self.runs),
            "moment": kill.moment,
            "victim": kill.victim if kill.victim != ONE else f"rank {kill.rank}",
            "started_by": kill.started_by,
            "workers": kill.workers,
            "first_step": first_step,
            "after_s": round(attempt.after_s, 4),
            "steps": attempt.trace.count(b"t") // (1 if self._is_replayed else kill.workers),
            "evaluations": attempt.trace.count(b"e"),
            "draft_left": bool(drafts_in(self._command.out) - left_before),
            "newest": newest(self._command.out),
            "to_end_s": round(attempt.to_end_s, 3),
            "code": attempt.code,
        }

    def _check(self) -> None:
        out = self._command.out
        reference, what = (self._replayed(), "its replay") if self._is_replayed else (self.reference, "the undisturbed run")
        wrong = list(problems(out, reference, self._same_workers))
        assert not wrong, f"{out} was killed {self._num_kills} times and is not {what}:\n  " + "\n  ".join(wrong)
        off = deviation(out / "weights.safetensors", reference.weights)
        self.runs.append({"kills": self._num_kills, "deviation": off})
        self.say(f"run {len(self.runs)}: killed {self._num_kills} times, then finished; weights differ by {off:.1e}")
        shutil.rmtree(out)


def newest(out: Path) -> int:
    """Local: the step of the newest checkpoint; 0 if there is none."""
    return max((step for step, _ in StepFolders(out / "checkpoints").list_steps()), default=0)


def first_steps(out: Path) -> list[int]:
    """Local: the step at which each attempt began that came so far."""
    file = out / "metrics.jsonl"
    return [row["first_step"] for row in read_lines(file) if row["event"] == "started"] if file.exists() else []


def line_of(row: dict[str, Any]) -> str:
    """Pure: a kill as one line."""
    who = f"{row['victim']:8} of {row['workers']} ({row['started_by']}) while {row['moment']:10} after {row['after_s']:.2f} s"
    began = "before it began" if row["first_step"] is None else f"from step {row['first_step']}, {row['steps']} steps"
    left = f"newest {row['newest']}{' and a draft' if row['draft_left'] else ''}"
    return f"{who}, {began}; {left}; over in {row['to_end_s']:.2f} s"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.kill_fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200, metavar="K", help="how many (default 200)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="the same seed draws the same kills (default 1)")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="in every attempt (default 2)")
    parser.add_argument("--algorithm", default=LOCK_STEP, help="e.g. gem, whose runs are compared with their replay")
    parser.add_argument("--epochs", default="20", help="of every run (default 20)")
    parser.add_argument("--change-workers", action="store_true", help="2, 1 and 3 workers in turn, with a plain model")
    parser.add_argument(
        "--end-limit",
        type=float,
        default=END_LIMIT_S,
        metavar="S",
        help=f"all must have ended so long after a kill (default {END_LIMIT_S:g}; more where other work slows the machine down)",
    )
    parser.add_argument("--minutes", type=float, default=float("inf"), metavar="M", help="kill no more after this time")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the runs, and record.json with all sittings")
    parser.add_argument(
        "--page", type=Path, metavar="FILE.md", help="also write a page about all sittings, and FILE.json beside it"
    )
    parser.add_argument("--page-only", type=Path, metavar="FILE.md", help="kill nothing; write that page again from FILE.json")
    args = parser.parse_args()
    if args.page_only is not None:
        from tests.faults.kill_page import page_of

        page_of(json.loads(args.page_only.with_suffix(".json").read_text())).publish(args.page_only.stem, args.page_only.parent)
        return 0
    if args.out is None:
        parser.error("--out DIR is needed: for the runs, and record.json with all sittings")
    failure = sit(args) if args.kills else None
    if args.page is not None:
        from tests.faults.kill_page import publish

        publish(json.loads((args.out / "record.json").read_text()), args.page)
    return 1 if failure else 0


def sit(args: argparse.Namespace) -> str | None:
    """Local, blocking: one sitting, which is added to the record. Gives what was found to be wrong."""
    from bench.machine import command_line, describe_moment

    began, moment, failure = monotonic(), describe_moment(), None
    workers = CHANGES if args.change_workers else (args.processes,)
    with fork_server() as running:
        folder = (args.out / f"{args.algorithm}-seed-{args.seed}").resolve()
        fuzz = Fuzz(folder, running, workers, ("--epochs", args.epochs), algorithm=args.algorithm, end_limit_s=args.end_limit)
        try:
            fuzz.happen(islice(drawn(args.seed, workers), args.kills), began + 60 * args.minutes)
        except AssertionError as error:
            failure = str(error)
            print(f"kill_fuzz: {failure}", file=sys.stderr)
    took_s = round(monotonic() - began, 1)
    add_sitting(
        args.out / "record.json",
        {
            "command": command_line(),
            **moment,
            "seed": args.seed,
            "workers": workers,
            "algorithm": args.algorithm,
            "epochs": args.epochs,
            "end_limit_s": args.end_limit,
            "took_s": took_s,
            "runs": fuzz.runs,
            "kills": fuzz.kills,
            "failure": failure,
        },
    )
    print(f"{len(fuzz.kills)} kills, {len(fuzz.runs)} runs finished, {took_s:.0f} s; the record is in {args.out}")
    return failure


def add_sitting(file: Path, sitting: dict[str, Any]) -> None:
    """Local, blocking: sittings with different seeds may go on at the same time."""
    with file.open("a+") as record:
        fcntl.flock(record, fcntl.LOCK_EX)
        record.seek(0)
        text = record.read()
        sittings = [*(json.loads(text)["sittings"] if text else ()), sitting]
        record.truncate(0)
        record.write(json.dumps({"sittings": sittings}))


if __name__ == "__main__":
    sys.exit(main())
