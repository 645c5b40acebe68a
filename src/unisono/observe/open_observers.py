"""Opens the observers of a run on one rank: only rank 0 shows and records the training, each rank its own load."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from unisono.events import Observer
from unisono.observe.console import Console
from unisono.observe.jsonl import JsonLines
from unisono.observe.monitor import Monitor
from unisono.task.train_config import TrainConfig


def open_observers(config: TrainConfig, rank: int, out: Path, console: Console | None) -> list[Observer]:
    """Local: opens the observers, which write into the run directory `out`. The caller closes them."""
    found: list[Observer] = []
    if rank == 0:
        if console is not None:
            found.append(console)
        found.append(JsonLines(out / "metrics.jsonl", config.log_every, _to_standard_error if console is None else console.say))
        if config.tensorboard:
            from unisono.observe.tensorboard import TensorBoard

            found.append(TensorBoard(out / "tensorboard", config.log_every))
    if config.monitor:
        found.append(Monitor(out / "monitor", rank=rank))
    return found


def say_to(observers: Sequence[Observer], text: str) -> None:
    """Local: sends a line to all observers, and to standard error where no console shows it: --quiet does not hide a failed
    save."""
    for observer in observers:
        observer.say(text)
    if not any(isinstance(observer, Console) for observer in observers):
        _to_standard_error(text)


def _to_standard_error(text: str) -> None:
    """Prints a line on standard error."""
    print(text, file=sys.stderr, flush=True)
