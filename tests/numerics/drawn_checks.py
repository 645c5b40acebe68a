"""Trains drawn tasks as users do, and compares all that comes out with the training by hand.

python -m tests.numerics.drawn_checks --cases 2000 --seed 0
python -m tests.numerics.drawn_checks --cases 200 --what servers
python -m tests.numerics.drawn_checks --cases 200 --what keras --backend jax
python -m tests.numerics.drawn_checks --cases 200 --what mistakes
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from tests.numerics.drawn_keras import DrawnKeras, draw_keras
from tests.numerics.drawn_mistakes import draw_mistake, task_with_mistake
from tests.numerics.drawn_servers import draw_server
from tests.numerics.drawn_tasks import Drawn, draw
from tests.numerics.plain_training import Plain, train_plainly
from unisono.comm.base import Communicator
from unisono.errors import ReportedElsewhere, UnisonoError, UsageError
from unisono.predict.apply_run import apply_runs
from unisono.predict.evaluate_run import evaluate_run
from unisono.predict.predict_options import ApplyConfig, EvaluateConfig
from unisono.run import EarlyStopHook, execute
from unisono.task.train_config import TrainConfig
from unisono.testing.thread_communicator import run_threads

TASK_FILE = """
from pathlib import Path
from tests.numerics.drawn_keras import draw_keras
from tests.numerics.drawn_servers import draw_server
from tests.numerics.drawn_tasks import draw

task = {task}
"""
BACKENDS = ("torch", "tensorflow", "jax")
TIED = frozenset({"second.weight"})
"""Stored once where it is the first layer's."""
COUNTERS = frozenset({"norm.num_batches_tracked"})
"""A server keeps its first ones, as docs/concepts-asynchronous.md says."""
TIGHT, LOOSE = 1e-9, 2e-3
"""Relative, of weights in float64 and in float32."""


def check_torch(seed: int, folder: Path, draw_one: Callable[[int], Drawn] = draw) -> list[str]:
    """Local, blocking: what differs from the training by hand."""
    drawn = draw_one(seed)
    drawn.data(folder)  # writes the files, which threads would write at the same time
    (folder / "task.py").write_text(TASK_FILE.format(task=f"{draw_one.__name__}({seed}).task(Path({str(folder)!r}))"))
    config = TrainConfig(str(folder / "task.py"), algorithm=drawn.algorithm, changes=_changes(drawn), simulate=drawn.virtual)
    return check(drawn, train_plainly(drawn), config, folder)


def check_server(seed: int, folder: Path) -> list[str]:
    """Local, blocking: what differs from the training by hand, with a server and virtual workers."""
    return check_torch(seed, folder, draw_server)


def check_keras(seed: int, folder: Path) -> list[str]:
    """Local, blocking: what differs from plain `fit`."""
    drawn = draw_keras(seed)
    (folder / "task.py").write_text(TASK_FILE.format(task=f"draw_keras({seed}).task()"))
    return check(drawn, drawn.train_plainly(), TrainConfig(str(folder / "task.py")), folder)


def check_mistake(seed: int, folder: Path) -> list[str]:
    """Local, blocking: whether a mistake is refused, with the reason."""
    name, mistake, drawn, task = task_with_mistake(seed, folder)
    drawn.data(folder)
    config = TrainConfig("", algorithm=drawn.algorithm, changes=_changes(drawn), out=str(folder / "run"))
    try:
        ended = _on_ranks(drawn.workers, lambda comm: execute(config, comm, None, task, early_stop=_never()))
    except UsageError as error:
        return [] if re.search(mistake.says, str(error)) else [f"{name}: refused for another reason: {error}"]
    return [f"{name}: not refused; gives {dict(ended.summary['metrics'])}"]


def _executed(config: TrainConfig, comm: Communicator) -> Mapping[str, Any]:
    return execute(config, comm, early_stop=_never()).summary


def _changes(drawn: Drawn) -> dict[str, Any]:
    options = {"period": drawn.period} if drawn.algorithm == "local_sgd" else drawn.server_options
    return {f"algorithm.{name}": value for name, value in options.items()}


def check(drawn: Drawn | DrawnKeras, expected: Plain, config: TrainConfig, folder: Path) -> list[str]:
    """Local, blocking: trains, stops and resumes, evaluates and applies; what differs from what was expected."""
    if not all(map(math.isfinite, [*expected.losses, *expected.val_losses])):
        return []  # the same in both, and what is done with it is tested elsewhere
    out = folder / "run"
    limits = [drawn.stop_after, None] if drawn.stop_after else [None]
    summary: Mapping[str, Any] = {}
    for max_steps in limits:
        attempt = replace(config, out=str(out), max_steps=max_steps)
        summary = _on_ranks(drawn.workers, partial(_executed, attempt))
    wrong = [*_differences_of_training(drawn, expected, out, summary)]
    evaluation = _on_ranks(drawn.workers, lambda comm: evaluate_run(EvaluateConfig(str(out)), comm))
    wrong += _differences("evaluate", expected.test, evaluation["metrics"], "test_", _limit(drawn))
    raw = folder / "outputs.npy"
    _on_ranks(drawn.workers, lambda comm: apply_runs(ApplyConfig([str(out)], kind="raw", out=str(raw)), comm))
    outputs = np.load(raw).reshape(expected.outputs.shape)
    if not np.allclose(outputs, expected.outputs.numpy(), rtol=_limit(drawn) * 10, atol=1e-5):
        wrong.append(f"apply gives outputs that are up to {np.abs(outputs - expected.outputs.numpy()).max():.2e} off")
    return wrong


def _never() -> EarlyStopHook:
    """No curves are drawn where a search trains, which saves most of the time."""
    return EarlyStopHook(lambda *_: True)


def _on_ranks(size: int, body: Callable[[Communicator], Any]) -> Any:
    """What rank 0 returns. The rank that raises the error itself is the one that counts."""

    def caught(comm: Communicator) -> Any:
        try:
            return body(comm)
        except UnisonoError as error:
            return error.with_traceback(None)  # whose frames would hold what reads the data

    results = run_threads(size, caught)
    errors = [one for one in results if isinstance(one, UnisonoError)]
    for error in sorted(errors, key=lambda one: isinstance(one, ReportedElsewhere)):
        raise error
    return results[0]


def _limit(drawn: Drawn | DrawnKeras) -> float:
    return TIGHT if drawn.double else LOOSE


def _differences_of_training(drawn: Drawn | DrawnKeras, expected: Plain, out: Path, summary: Mapping[str, Any]) -> Iterator[str]:
    files = {"weights": expected.last, **({"best": expected.weights} if drawn.best else {})}
    kept_by_workers = COUNTERS if isinstance(drawn, Drawn) and drawn.virtual else frozenset()
    for name, weights in files.items():
        found = load_file(out / f"{name}.safetensors")
        if missing := weights.keys() - found.keys() - TIED:
            yield f"{name}.safetensors lacks {missing}"
        for tensor in found:
            if tensor in kept_by_workers:
                continue
            off = float((found[tensor].double() - weights[tensor].double()).norm() / (weights[tensor].double().norm() + 1e-6))
            if off > _limit(drawn):
                yield f"{tensor} of {name}.safetensors is {off:.2e} of its norm off"
    epochs = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in epochs if row.get("event") == "epoch"]
    for name, values in (("loss", expected.losses), ("val_loss", expected.val_losses)):
        found_values = [row["metrics"][name] if "metrics" in row else row[name] for row in rows]
        if not _close(found_values, values, _limit(drawn)):
            yield f"{name} of the epochs is {found_values}, by hand {values}"
    yield from _differences("test", expected.test, summary["metrics"], "test_", _limit(drawn))


def _differences(what: str, expected: Mapping[str, float], found: Mapping[str, float], prefix: str, limit: float) -> list[str]:
    return [
        f"{prefix}{name} of {what} is {found.get(prefix + name)}, by hand {value}"
        for name, value in expected.items()
        if not _close([found.get(prefix + name, math.inf)], [value], limit)
    ]


def _close(found: list[Any], expected: list[float], limit: float) -> bool:
    given = [math.nan if value is None else float(value) for value in found]
    return len(given) == len(expected) and np.allclose(given, expected, rtol=limit * 10, atol=limit, equal_nan=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2000, metavar="N", help="how many (default 2000)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="number of the first (default 0)")
    parser.add_argument("--what", choices=CHECKS, default="torch", help="kind of task (default torch)")
    parser.add_argument("--backend", choices=BACKENDS, help="of keras (default: that of KERAS_BACKEND)")
    args = parser.parse_args()
    if args.backend is not None:
        os.environ["KERAS_BACKEND"] = args.backend  # Keras is not loaded yet, and reads it once
    torch.set_num_threads(1)
    draw_one, check_one = CHECKS[args.what]
    counted: Counter[str] = Counter()
    num_wrong = 0
    for seed in range(args.seed, args.seed + args.cases):
        drawn = draw_one(seed)
        wrong = found_in(check_one, seed)
        counted.update(words_of(drawn))
        if wrong:
            num_wrong += 1
            print(f"{drawn}\n  " + "\n  ".join(wrong), flush=True)
    print(f"{args.cases} cases, {num_wrong} differ; " + ", ".join(f"{name} {count}" for name, count in sorted(counted.items())))
    return 1 if num_wrong else 0


def found_in(check_one: Callable[[int, Path], list[str]], seed: int) -> list[str]:
    """Local, blocking: what is wrong with one case. An exception is told with it, so that the next one is tried."""
    with tempfile.TemporaryDirectory(prefix="unisono-drawn-") as folder:
        try:
            return check_one(seed, Path(folder))
        except Exception as error:  # noqa: BLE001 - of whatever kind
            return [f"{type(error).__name__}: {error}"]


def words_of(drawn: Any) -> list[str]:
    """Pure: what is counted of a case."""
    if isinstance(drawn, tuple):
        return [drawn[0]]
    return [drawn.kind, drawn.optimizer[0], f"{drawn.workers} workers", *([drawn.algorithm] if isinstance(drawn, Drawn) else [])]


CHECKS: Mapping[str, tuple[Callable[[int], Any], Callable[[int, Path], list[str]]]] = {
    "torch": (draw, check_torch),
    "servers": (draw_server, check_server),
    "keras": (draw_keras, check_keras),
    "mistakes": (draw_mistake, check_mistake),
}

if __name__ == "__main__":
    sys.exit(main())
