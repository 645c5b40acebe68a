"""What faults cost a run whose workers come and go: one table of scenarios, each a real run with real kills.

    python -m bench.elastic --mnist DIR      # DIR holds the files of MNIST (unisono data get mnist); about 10 minutes
    python -m bench.elastic --quick          # fewer samples, few scenarios

Writes elastic.md and elastic.json (every epoch of every run, and what it said). Measures no time.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psutil

from bench.groups import ROOT, GroupFailed
from bench.machine import command_line, describe_machine
from bench.options import parse
from bench.progress import Progress
from bench.record import write_json
from bench.rounds import markdown_table
from bench.session import open_record

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
        return subprocess.Popen([sys.executable, "-m", "unisono", *arguments], stdout=self._file, stderr=self._file)

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
            "num_dealt_again": sum(int(line.split("; ")[1].split()[0]) for line in lines if "are dealt out again" in line),
        }

    def close(self) -> None:
        """Idempotent: nothing is left running."""
        for one in (self.process, *self.joined):
            if one.poll() is None:
                one.kill()
            one.wait()
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", type=Path, required=True, metavar="DIR", help="the folder of MNIST")
    args = parse(parser)
    if args.figure:
        (args.out / "elastic.md").write_text(page(json.loads((args.out / "elastic.json").read_text())))
        return 0
    num_train, epochs = (3_000, 4) if args.quick else (NUM_TRAIN, EPOCHS)
    settings = {"num_train": num_train, "epochs": epochs, "algorithm": "gem", "workers": 4, "global_batch": 256, "lr": 0.05}
    progress = Progress()
    record = open_record("elastic", args, settings, progress)
    options = (
        "--algorithm", "gem", "--lr", "0.05", "--global-batch", "256", "--epochs", str(epochs), "--checkpoint-every", "20s",
        "--set", f"data.mnist={args.mnist.resolve()}", "--set", f"data.num_train={num_train}", "--silence", "5",
    )  # fmt: skip
    rows = []
    for name, act in SCENARIOS.items():
        if args.quick and name not in QUICK:
            continue
        progress.say(name)
        rows.append({"scenario": name, **_run(options, act)})
    result = {
        "command": command_line().replace(str(args.mnist), "DIR").replace(f" --out {args.out}", ""),
        "machine": describe_machine(),
        "sittings": record.sittings,
        "settings": settings,
        "not_checked": NOT_CHECKED,
        "rows": rows,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    write_json(args.out / "elastic.json", result)
    (args.out / "elastic.md").write_text(page(result))
    record.finish()
    print(page(result))
    return 0 if all(holds(result, row) for row in rows) else 1


def _run(options: Sequence[str], act: Callable[[Run], None]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="unisono-bench-") as folder:
        run = Run(Path(folder) / "run", options)
        try:
            act(run)
            return run.end()
        finally:
            run.close()


def holds(result: dict[str, Any], row: dict[str, Any]) -> bool:
    """Pure: whether every sample counted once and the accuracy is near that of the run without a fault."""
    settings = result["settings"]
    is_whole: bool = row["num_samples"] == settings["num_train"] * settings["epochs"]
    return is_whole and bool(abs(row["accuracy"] - result["rows"][0]["accuracy"]) * 100 <= MOST_POINTS)


def page(result: dict[str, Any]) -> str:
    """Pure: the page in docs/results."""
    settings, rows = result["settings"], result["rows"]
    table = markdown_table(
        ("scenario", "samples used", "batches dealt again", "accuracy", "points", "holds"),
        [
            (
                row["scenario"],
                f"{row['num_samples']:,}",
                str(row["num_dealt_again"]),
                f"{100 * row['accuracy']:.2f} %",
                f"{100 * (row['accuracy'] - rows[0]['accuracy']):+.2f}",
                "yes" if holds(result, row) else "NO",
            )
            for row in rows
        ],
    )
    return (
        "# Faults in a run whose workers come and go\n\n"
        f"Made by `{result['command']}`; every epoch of every run, and what it said: elastic.json. Each row is one run of a server "
        f"and four workers (`--elastic 4 --algorithm gem`) on the first {settings['num_train']:,} images of MNIST for "
        f"{settings['epochs']} epochs; the fault comes after the second epoch. Accuracy is that of the last epoch on the 10,000 "
        "test images; points are against the first row. It holds where every sample of every epoch was used once "
        f"({settings['num_train'] * settings['epochs']:,}; what a killed server had done after its last checkpoint is done again "
        f"and counts once) and the accuracy is within {MOST_POINTS:g} point.\n\n"
        f"{table}\n\n"
        "## What was not checked\n\n" + "\n".join(f"- {line}" for line in result["not_checked"]) + "\n\n"
        "## Machine and time\n\n"
        + "; ".join(f"{name}: {value}" for name, value in result["machine"].items())
        + "\n\n"
        + "\n".join(f"- {one['at']}, commit {one['commit']}, load before {one['load']}" for one in result["sittings"])
        + "\n"
    )


if __name__ == "__main__":
    sys.exit(main())
