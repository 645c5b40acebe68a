"""What faults cost a run whose workers come and go: one table of scenarios, each a real run with real kills.

    python -m bench.elastic --mnist DIR      # DIR holds the files of MNIST (unisono data get mnist); about 10 minutes
    python -m bench.elastic --quick          # fewer samples, few scenarios

Writes elastic.md and elastic.json (every epoch of every run, and what it said). Measures no time.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psutil

from bench.bounds import Bound
from bench.groups import ROOT, GroupFailed, Launch, end, started, temporary_folder
from bench.measurement import begin, guarded
from bench.options import parse, parser_of
from bench.page import Page, Result, Table
from bench.rounds import Estimate

TASK = ROOT / "bench" / "asynchronous_task.py"
NUM_TRAIN, EPOCHS = 12_000, 6
LIMIT_S = 300.0
MOST_POINTS = 1.0
"""By which the accuracy may differ from that of the run without a fault."""
NOT_CHECKED = (
    "Several machines: server and workers were processes of one, and ZeroMQ went over its loopback.",
    "The order of calls is another one in every run, so accuracies differ a little without any fault too.",
    "Time: the machine has two cores for five processes, and other work ran beside.",
)


class Run:
    """A server and four workers, started by one command, and those that join."""

    def __init__(self, out: Path, options: Sequence[str]) -> None:
        self.out = out
        self.log = out.with_suffix(".txt")
        self._file = self.log.open("wb")
        self.process = self._start("train", str(TASK), "--elastic", "4", "--out", str(out), *options)
        self.joined: list[subprocess.Popen[bytes]] = []

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return started(Launch([sys.executable, "-m", "unisono", *arguments]), self._file)

    def join(self) -> None:
        self.joined.append(self._start("join", str(self.out), "--threads", "1"))

    def member(self, rank: int) -> psutil.Process:
        """The process of a rank; 0 is the server."""
        for child in psutil.Process(self.process.pid).children():
            if child.status() != psutil.STATUS_ZOMBIE and child.environ().get("UNISONO_RANK") == str(rank):
                return child
        raise GroupFailed(f"rank {rank} is not there: {self.said()}")

    def said(self) -> str:
        return self.log.read_text()

    def until_epoch(self, epoch: int) -> None:
        """Blocking: until so many epochs are over."""
        deadline = monotonic() + LIMIT_S
        while f"epoch {epoch}/" not in self.said():
            if monotonic() > deadline or self.process.poll() is not None:
                raise GroupFailed(f"{self.out} does not reach epoch {epoch}: {self.said()}")
            sleep(0.05)

    def end(self) -> dict[str, Any]:
        """Blocking: the summary, with all that was said."""
        code = self.process.wait(LIMIT_S)
        for one in self.joined:
            one.wait(LIMIT_S)
        self._file.close()
        if code:
            raise GroupFailed(f"{self.out} ended with exit code {code}: {self.said()}")
        summary = json.loads((self.out / "summary.json").read_text())
        lines = [line for line in self.said().splitlines() if not line.startswith("epoch ")]
        return {
            "accuracy": summary["metrics"]["val_accuracy"],
            "num_samples": summary["num_samples"],
            "history": [{"epoch": row["epoch"], **row["metrics"]} for row in summary["history"]],
            "said": [line.replace(str(self.out), "RUN") for line in lines],
            "num_dealt_again": sum(int(line.split("; ")[1].split()[0]) for line in lines if "are assigned again" in line),
        }

    def close(self) -> None:
        """Idempotent: nothing is left running."""
        for one in (self.process, *self.joined):
            end(one)
        self._file.close()


def _kill(*ranks: int) -> Callable[[Run], None]:
    def act(run: Run) -> None:
        run.until_epoch(2)
        for member in [run.member(rank) for rank in ranks]:
            member.kill()

    return act


def _stand_still(run: Run) -> None:
    run.until_epoch(2)
    member = run.member(2)
    member.send_signal(signal.SIGSTOP)
    sleep(20)
    member.send_signal(signal.SIGCONT)


def _join_two(run: Run) -> None:
    run.until_epoch(2)
    run.join()
    run.join()


SCENARIOS: dict[str, Callable[[Run], None]] = {
    "no fault": lambda run: None,  # noqa: ARG005
    "no fault, again": lambda run: None,  # noqa: ARG005
    "worker 1 killed": _kill(1),
    "worker 2 killed": _kill(2),
    "worker 3 killed": _kill(3),
    "worker 4 killed": _kill(4),
    "two workers killed at once": _kill(1, 3),
    "server killed": _kill(0),
    "a worker stopped for 20 s (SIGSTOP)": _stand_still,
    "two workers join late": _join_two,
}
QUICK = ("no fault", "worker 1 killed", "server killed")


def main() -> int:
    """Local, blocking: all scenarios, and the table. 1 if a bound does not hold."""
    args = parse(parser_of("elastic", __doc__), needs_mnist=True)
    measurement = begin("elastic", args, page_of)
    num_train, epochs = (3_000, 4) if args.quick else (NUM_TRAIN, EPOCHS)
    settings = {"num_train": num_train, "epochs": epochs, "algorithm": "gem", "workers": 4, "global_batch": 256, "lr": 0.05}
    record = measurement.record(settings)
    options = (
        "--algorithm", "gem", "--lr", "0.05", "--global-batch", "256", "--epochs", str(epochs), "--checkpoint-every", "20s",
        "--set", f"data.mnist={args.mnist.resolve()}", "--set", f"data.num_train={num_train}", "--silence", "5",
    )  # fmt: skip
    for name in QUICK if args.quick else SCENARIOS:
        if record.lacks(name):
            record.add(name, {"scenario": name, **_run(options, SCENARIOS[name])})
    rows = list(record.asked().values())
    measurement.finish(not_checked=NOT_CHECKED, rows=rows)
    return 0 if all(holds({"settings": settings, "rows": rows}, row) for row in rows) else 1


def _run(options: Sequence[str], act: Callable[[Run], None]) -> dict[str, Any]:
    with temporary_folder() as folder:
        run = Run(folder / "run", options)
        try:
            act(run)
            return run.end()
        finally:
            run.close()


def holds(result: Result, row: Result) -> bool:
    """Pure: whether every sample counted once and the accuracy is near that of the run without a fault."""
    settings = result["settings"]
    is_whole: bool = row["num_samples"] == settings["num_train"] * settings["epochs"]
    return is_whole and bool(abs(row["accuracy"] - result["rows"][0]["accuracy"]) * 100 <= MOST_POINTS)


def page_of(result: Result) -> Page:
    """Pure: the page of these raw data."""
    settings, rows = result["settings"], result["rows"]
    num_samples = f"{settings['num_train'] * settings['epochs']:,}"
    points = [100 * (row["accuracy"] - rows[0]["accuracy"]) for row in rows]
    holding = [holds(result, row) for row in rows]
    drawn = {row["scenario"]: Estimate(of_row, of_row, of_row) for row, of_row in zip(rows, points, strict=True)}
    table = [
        {
            "scenario": row["scenario"],
            "samples used": f"{row['num_samples']:,}",
            "batches dealt again": str(row["num_dealt_again"]),
            "accuracy": f"{100 * row['accuracy']:.2f} %",
            "points": f"{of_row:+.2f}",
            "holds": "yes" if is_good else "NO",
        }
        for row, of_row, is_good in zip(rows, points, holding, strict=True)
    ]
    found, asked = f"{sum(holding)} of {len(rows)} runs", f"{num_samples} samples used, accuracy within {MOST_POINTS:g} point"
    return Page(
        question="What do workers cost that are killed, stopped and join, and a killed server?",
        answer=f"At most {max(map(abs, points)):.2f} points of accuracy; {found} used every sample of every epoch once and end "
        f"within {MOST_POINTS:g} point of the run without a fault.",
        result=result,
        measures_time=False,
        setup="Each row is one run of a server and four workers (`--elastic 4 --algorithm gem`) on the first "
        f"{settings['num_train']:,} images of MNIST for {settings['epochs']} epochs; the fault comes after the second epoch.",
        tables=[Table.of(table, drawn=drawn, drawn_label="points of accuracy, against no fault")],
        bounds=[Bound("every scenario", found, asked, "holds" if all(holding) else "MISSED")],
        reading=[
            "Accuracy is that of the last epoch on the 10,000 test images; points are against the first row.",
            f"A row holds where every sample of every epoch was used once ({num_samples}; what a killed server had done after its "
            f"last checkpoint is done again and counts once) and the accuracy is within {MOST_POINTS:g} point.",
        ],
        not_measured=result["not_checked"],
        raw="every epoch of every run, and what it said",
    )


if __name__ == "__main__":
    sys.exit(guarded(main))
