"""Stop, restore, go on: the end is bit for bit that of a run that was not disturbed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.fork_server import ForkServer
from tests.system.processes import plain_environment
from unisono.cli import main
from unisono.errors import UsageError
from unisono.model.flat import hash_of
from unisono.training.checkpointing.saving import SaveInterval
from unisono.training.run_folder.weights import load_weights

STOPPED = 75
PROGRAM = Path(__file__).parent / "programs" / "resume.py"
TIMES = ("samples_per_s", "wall_s", "data_wait_s")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in set(os.environ) - set(plain_environment()):
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    shutil.copy(PROGRAM, "task.py")
    yield
    signal.signal(signal.SIGINT, before)
    for name, module in list(sys.modules.items()):
        if tmp_path in Path(getattr(module, "__file__", None) or "").parents:
            del sys.modules[name]


def train(out: str, *options: str) -> int:
    return main(["train", "task.py", "--out", out, "--quiet", *options])


def summary(out: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(out) / "summary.json").read_text())
    return found


def rows(out: str) -> list[tuple[Any, ...]]:
    found = [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]
    return [(row["event"], row["step"], row.get("loss"), row["metrics"]) for row in found if row["event"] in ("step", "epoch")]


def expect_same(out: str, undisturbed: str) -> None:
    """All but the times."""
    one, other = summary(out), summary(undisturbed)
    for name in ("reason", "weights_sha256", "metrics", "steps", "epochs", "best_epoch", "num_skipped_updates"):
        assert one[name] == other[name], name
    histories = [[{k: v for k, v in row.items() if k not in TIMES} for row in found["history"]] for found in (one, other)]
    assert histories[0] == histories[1]
    best = [load_weights(Path(where) / "best.safetensors")[0] for where in (out, undisturbed)]
    assert hash_of(best[0]) == hash_of(best[1])
    assert rows(out) == rows(undisturbed)


KINDS = {
    "adam": (),
    "sgd": ("--set", "optimizer=sgd", "--set", "optimizer.momentum=0.9", "--set", "optimizer.nesterov=true"),
    "some steps use all": ("--set", "model.spare=yes"),
    "accumulate": ("--accumulate", "3", "--set", "clip_norm=0.5"),
    "bf16": ("--precision", "bf16"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_one_worker_resumes_in_the_middle_of_an_epoch(kind: str) -> None:
    options = ("--log-every", "1", *KINDS[kind])
    assert train("undisturbed", *options) == 0
    Path("stop-at").write_text("train 9")
    assert train("run", *options) == STOPPED
    assert summary("run")["reason"] == "interrupted"
    assert json.loads(Path("run/status.json").read_text())["exit_code"] == STOPPED
    assert train("run", *options) == 0
    expect_same("run", "undisturbed")
    status = json.loads(Path("run/status.json").read_text())
    assert (status["state"], len(status["lives"])) == ("finished", 2)


def test_it_resumes_wherever_it_was_stopped() -> None:
    """Before the first step, in an evaluation, in the first step, in the last, in the test."""
    assert train("undisturbed", "--log-every", "1") == 0
    for when in ("eval 1", "eval 4", "eval 5", "train 2", "train 40", "eval 10"):
        Path("stop-at").write_text(when)
        assert train(when, "--log-every", "1") == STOPPED, when
        assert train(when, "--log-every", "1") == 0, when
        expect_same(when, "undisturbed")


def test_saves_change_nothing() -> None:
    assert train("undisturbed", "--log-every", "1", "--checkpoint-every", "never") == 0
    assert train("run", "--log-every", "1", "--checkpoint-every", "2", "--keep", "2") == 0
    expect_same("run", "undisturbed")
    assert len(list(Path("run/checkpoints").glob("step-*"))) == 2


def test_a_finished_run_does_nothing_and_more_epochs_extend_it(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--set", "schedule=constant")
    assert train("undisturbed", "--epochs", "4", *options) == 0
    assert train("run", "--epochs", "2", *options) == 0
    before = Path("run/weights.safetensors").stat().st_mtime_ns
    capsys.readouterr()
    assert main(["train", "task.py", "--out", "run", "--epochs", "2", *options]) == 0
    assert "run is finished" in capsys.readouterr().out
    assert Path("run/weights.safetensors").stat().st_mtime_ns == before
    assert train("run", "--epochs", "4", *options) == 0
    expect_same("run", "undisturbed")


def test_another_experiment_is_refused_accepted_or_put_aside(capsys: pytest.CaptureFixture[str]) -> None:
    Path("stop-at").write_text("train 9")
    assert train("run") == STOPPED
    capsys.readouterr()
    assert train("run", "--lr", "0.02") == 2
    told = capsys.readouterr().err
    assert "settings.lr 0.01 before, 0.02 now" in told and "--fresh" in told and "--accept-changes" in told
    assert train("run", "--lr", "0.02", "--accept-changes", "--epochs", "5") == 0
    assert summary("run")["accepted_changes"] == ["settings.lr 0.01 before, 0.02 now"]
    assert train("run", "--fresh") == 0
    assert summary("run/earlier-1")["epochs"] == 5
    assert summary("run")["accepted_changes"] == [] and summary("run")["epochs"] == 4


def test_a_changed_task_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    Path("stop-at").write_text("train 9")
    assert train("run") == STOPPED
    Path("task.py").write_text(Path("task.py").read_text().replace("Dropout(0.3)", "Dropout(0.4)"))
    capsys.readouterr()
    del sys.modules["task"]
    assert train("run") == 2
    assert "sources.task.py" in capsys.readouterr().err


def test_accepted_changes_that_do_not_fit_are_refused_and_nothing_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("undisturbed") == 0
    Path("stop-at").write_text("train 9")
    assert train("run") == STOPPED
    for change, told in (("model.spare=yes", "spare.weight"), ("optimizer=sgd", "Adam")):
        capsys.readouterr()
        assert train("run", "--accept-changes", "--set", change) == 2
        said = capsys.readouterr().err
        assert "the checkpoint does not fit this model or optimiser" in said and told in said and "Traceback" not in said
    assert train("run") == 0, "the command that it was begun with still goes on"
    expect_same("run", "undisturbed")


def test_a_new_goal_after_the_old_one_was_reached() -> None:
    constant = ("--set", "schedule=constant")
    assert train("undisturbed", *constant) == 0
    assert train("run", *constant, "--target", "0.0001") == 0
    assert (summary("run")["reason"], summary("run")["epochs"]) == ("target reached", 1)
    assert train("run", *constant, "--accept-changes") == 0
    assert (summary("run")["reason"], summary("run")["epochs"]) == ("finished", 4)
    expect_same("run", "undisturbed")


def test_another_batch_size_starts_the_epoch_in_hand_again(capsys: pytest.CaptureFixture[str]) -> None:
    Path("stop-at").write_text("train 13")
    assert train("run") == STOPPED
    first = summary("run")["steps"]
    assert 10 < first < 20, "in the second epoch of 10 steps"
    capsys.readouterr()
    assert main(["train", "task.py", "--out", "run", "--global-batch", "32", "--accept-changes", "--log-every", "1"]) == 0
    assert "the current epoch starts again" in capsys.readouterr().out
    second = [row[1] for row in rows("run") if row[0] == "step" and row[1] >= first]
    assert second == list(range(first, first + 3 * 19)), "three epochs of 600 samples in batches of 32"


def test_other_data_are_seen(capsys: pytest.CaptureFixture[str]) -> None:
    """The task is the same, but not what it reads."""
    text = Path("task.py").read_text()
    Path("task.py").write_text(text.replace("[:1000]", "[: 1000 - Path('fewer').exists()]"))
    Path("stop-at").write_text("train 9")
    assert train("run") == STOPPED
    Path("fewer").touch()
    capsys.readouterr()
    assert train("run") == 2
    assert "samples.num_samples" in capsys.readouterr().err
    Path("fewer").unlink()
    assert train("run") == 0


def test_weights_to_begin_with_are_not_needed_again() -> None:
    assert train("first", "--epochs", "1") == 0
    shutil.copy("first/weights.safetensors", "begin.safetensors")
    begin = ("--init-from", "begin.safetensors")
    assert train("undisturbed", *begin) == 0
    Path("stop-at").write_text("train 9")
    assert train("run", *begin) == STOPPED
    Path("begin.safetensors").unlink()
    assert train("run", *begin) == 0
    expect_same("run", "undisturbed")
    assert train("other", *begin) == 2
    assert not Path("other").exists()


def test_what_cannot_be_kept_is_said_before_work_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    state = "        self.count: Tensor\n\n    def get_extra_state(self) -> object:\n        return object()\n\n"
    Path("task.py").write_text(Path("task.py").read_text().replace("        self.count: Tensor\n\n", state))
    assert train("run") == 2
    assert "cannot be saved in a checkpoint (state.model._extra_state)" in capsys.readouterr().err
    assert not Path("run").exists()


def test_a_broken_line_in_the_record_does_not_matter() -> None:
    Path("stop-at").write_text("train 9")
    assert train("run", "--log-every", "1") == STOPPED
    with Path("run/metrics.jsonl").open("ab") as file:
        file.write(b"\0\0\0\n{}\n")
    assert train("run", "--log-every", "1") == 0
    assert Path("run/metrics.jsonl").read_bytes().count(b"\0\0\0\n") == 1, "left for people to see"


def test_a_damaged_checkpoint_is_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("undisturbed") == 0
    Path("stop-at").write_text("train 15")
    assert train("run", "--checkpoint-every", "5") == STOPPED
    newest = max(Path("run/checkpoints").glob("step-*"))
    state = newest / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-1])
    capsys.readouterr()
    assert main(["train", "task.py", "--out", "run", "--checkpoint-every", "5"]) == 0
    assert f"{newest.name} is damaged" in capsys.readouterr().out
    expect_same("run", "undisturbed")
    for state in Path("run/checkpoints").glob("step-*/state.safetensors"):
        state.unlink()
    assert train("run", "--epochs", "9") == 2
    assert "no checkpoint" in capsys.readouterr().err


def test_a_time_limit_stops_in_time_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["train", "task.py", "--out", "run", "--epochs", "100000", "--time-limit", "4s"])
    out = capsys.readouterr().out
    assert code == STOPPED and "stopped (time limit)" in out and "before the limit of 4s" in out
    assert any(Path("run/checkpoints").glob("step-*"))


def test_two_workers_resume(fork_server: ForkServer) -> None:
    """Each has running statistics of its own in the middle of an epoch."""
    command = ["-m", "unisono.cli", "train", "task.py", "--quiet", "--log-every", "1", "--out"]
    ended = fork_server.run([*command, "undisturbed"], 2, "shm")
    assert ended.exit_code == 0, ended
    Path("stop-at").write_text("train 9")
    assert fork_server.run([*command, "run"], 2, "shm").exit_code == STOPPED
    ended = fork_server.run([*command, "run"], 2, "shm")
    assert ended.exit_code == 0, ended
    expect_same("run", "undisturbed")


@pytest.mark.parametrize(
    ("text", "every"),
    [("500", SaveInterval(steps=500)), ("3 epochs", SaveInterval(epochs=3)), ("1epoch", SaveInterval(epochs=1)),
     ("30s", SaveInterval(seconds=30.0)), ("2h", SaveInterval(seconds=7200.0)), ("never", SaveInterval())],
)  # fmt: skip
def test_how_often(text: str, every: SaveInterval) -> None:
    assert SaveInterval.parse(text) == every


@pytest.mark.parametrize("text", ["0", "", "often", "-3", "10 minutes"])
def test_how_often_not(text: str) -> None:
    with pytest.raises(UsageError, match="--checkpoint-every must be like"):
        SaveInterval.parse(text)
