"""Workers that learn by themselves, as real processes: stop, restore, go on gives the bits of a run that was not disturbed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.system.fork_server import ForkServer

PROGRAM = Path(__file__).parent / "programs" / "resume.py"
TRAIN = ["-m", "unisono.cli", "train", "task.py", "--log-every", "1", "--epochs", "2"]
STOPPED = 75
TIMES = ("samples_per_s", "wall_s", "data_wait_s")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(PROGRAM, "task.py")


def train(fork_server: ForkServer, out: str, num_processes: int, engine: str, *options: str, code: int = 0) -> str:
    ended = fork_server.run([*TRAIN, "--out", out, *options], num_processes, engine)
    assert ended.exit_code == code, ended
    return ended.output


def found(out: str) -> dict[str, Any]:
    """All but the times."""
    summary = json.loads(Path(out, "summary.json").read_text())
    rows = [json.loads(line) for line in Path(out, "metrics.jsonl").read_text().splitlines()]
    assert summary["replicas_equal"]
    return {
        "weights": summary["weights_sha256"],
        "metrics": summary["metrics"],
        "history": [{name: value for name, value in row.items() if name not in TIMES} for row in summary["history"]],
        "steps": [(row["step"], row["loss"], row["metrics"]) for row in rows if row["event"] == "step"],
    }


@pytest.mark.parametrize(
    ("engine", "num_processes", "options"),
    [
        ("shm", 2, ("--algorithm", "diloco", "--set", "algorithm.period=4", "--set", "algorithm.overlap=2")),
        ("gloo", 4, ("--algorithm", "local_sgd", "--set", "algorithm.period=4", "--group", "2")),
    ],
    ids=["diloco", "local_sgd in groups"],
)
def test_it_resumes_bit_for_bit(fork_server: ForkServer, engine: str, num_processes: int, options: tuple[str, ...]) -> None:
    """Adam, dropout, batch-norm, a counter; stopped in the middle of a round."""
    train(fork_server, "undisturbed", num_processes, engine, *options)
    train(fork_server, "run", num_processes, engine, *options, "--max-steps", "6", "--checkpoint-every", "5", code=STOPPED)
    shutil.copytree("run", "other")
    train(fork_server, "run", num_processes, engine, *options)
    assert found("run") == found("undisturbed")
    if "--group" in options:
        told = train(fork_server, "other", num_processes, engine, *options[:-1], "4", code=2)
        assert "algorithm.group 2 before, 4 now" in told
    else:
        told = train(fork_server, "other", 3, engine, *options)
        assert "the weights and optimiser states of 2 workers" in told
        assert "processes 2 before, 3 now; the result will differ, as workers learn by themselves" in told
        assert found("other")["history"][-1]["epoch"] == 1
