"""How a training ends before its time: signals, kills, a reader that leaves, a full disk, a loss that is no number. All ranks end
at the same step, what was reached is written, and the exit code and one message say what it was."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import unisono as un
from tests.system.fork_server import ForkServer
from tests.system.processes import Program, plain_environment
from unisono.cli import main
from unisono.testing.ranks import GroupResult

LIMIT_S = 100.0
TASK = """
import os
import signal
from dataclasses import replace

import numpy as np
from torch import nn

import unisono as un

RANK = os.environ.get("UNISONO_RANK", "0")
LABELS = np.arange(60) % 3
INPUTS = np.eye(3, 4, dtype=np.float32)[LABELS]
calls = []


def model() -> nn.Module:
    return nn.Linear(4, 3)


def data() -> un.Splits:
    return un.Splits((INPUTS, LABELS))


def happens():
    pass


def loss(outputs, targets):
    found = nn.functional.cross_entropy(outputs, targets, reduction="none")
    if not outputs.requires_grad:  # before the training it is tried
        return found
    calls.append(len(targets))
    return found * (happens() or 1.0) if len(calls) == 8 else found


task = un.Task(model=model, data=data, loss=loss, lr=0.1, global_batch=20, epochs=1000)
"""
STEPS = 9
"""What happens in the step of number 7 is heard of in the next."""
CTRL_C = """
    open(f"in-step-{RANK}", "w").close()
    while not os.path.exists("in-step-0") or not os.path.exists("in-step-1"): signal.sigtimedwait([], 0.001)
    RANK == "0" and os.kill(os.getppid(), signal.SIGINT)
    while not signal.getsignal(signal.SIGINT).__self__.requested(): signal.sigtimedwait([], 0.001)
"""
"""To the launcher, once both ranks are in the same step, in which they wait until they have heard of it."""


def summary(run: str = "run") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(run) / "summary.json").read_text())
    return found


def expect_all_written(run: str = "run") -> None:
    found = summary(run)
    assert (found["reason"], found["steps"], found["replicas_equal"]) == ("interrupted", STEPS, True)
    assert {"weights.safetensors", "metrics.jsonl", "curves.png"} <= {path.name for path in Path(run).iterdir()}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in set(os.environ) - set(plain_environment()):
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
    for name, module in list(sys.modules.items()):
        if tmp_path in Path(getattr(module, "__file__", None) or "").parents:
            del sys.modules[name]


def write(happens: str = "", more: str = "") -> None:
    event = f"def happens():\n    {happens or 'pass'}\n"
    Path("task.py").write_text(TASK + event + dedent(more))


# ---- one worker ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_ends_the_training_after_the_step_in_hand(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    write(f"os.kill(os.getpid(), signal.{name})")
    assert main(["train", "task.py", "--out", "run"]) == 75
    out, error = capsys.readouterr()
    assert f"interrupted: {STEPS} steps" in out and not error
    expect_all_written()


@pytest.mark.parametrize(("name", "raised"), [("SIGINT", KeyboardInterrupt), ("SIGTERM", SystemExit)])
def test_a_call_that_was_stopped_raises_when_all_is_saved(name: str, raised: type[BaseException]) -> None:
    write(f"os.kill(os.getpid(), signal.{name})")
    with pytest.raises(raised) as caught:
        un.train("task.py", out="run", show=False)
    expect_all_written()
    assert getattr(caught.value, "code", None) == (75 if name == "SIGTERM" else None)
    assert un.train("task.py", out="run", max_steps=12, show=False).summary["steps"] == 12, "it resumes, and no signal ends it"


SIGNALLED_AFTERWARDS = """
    class Tested(un.Source):
        def __len__(self):
            return 60

        def read(self, indices):
            if os.path.exists("run/metrics.jsonl"):  # samples are read before, too, to compare them over workers
                os.kill(os.getpid(), signal.SIGINT)
            return INPUTS[indices], LABELS[indices]

    task = replace(task, epochs=1, data=lambda: un.Splits((INPUTS, LABELS), test=Tested()))
"""


def test_a_signal_after_the_training_loses_nothing() -> None:
    write(more=SIGNALLED_AFTERWARDS)
    assert main(["train", "task.py", "--out", "run", "--quiet"]) == 0
    assert summary()["reason"] == "finished" and "test_loss" in summary()["metrics"]


def test_a_call_raises_also_where_ctrl_c_came_after_the_training() -> None:
    write(more=SIGNALLED_AFTERWARDS)
    with pytest.raises(KeyboardInterrupt):
        un.train("task.py", out="run", show=False)
    assert summary()["reason"] == "finished"


def test_a_second_signal_ends_it_at_once() -> None:
    """Those that come together would be one."""
    more = "from unisono.stopping import second_signal\nsecond_signal.SAME_SIGNAL_S = {signal.SIGINT: 0.0}"
    write("while True: os.kill(os.getpid(), signal.SIGINT)", more)
    with Program([sys.executable, "-m", "unisono", "train", "task.py", "--out", "run", "--quiet"], plain_environment()) as program:
        ended = program.finish(LIMIT_S)
    assert (ended.code, ended.output) == (-signal.SIGINT, ""), ended
    assert not Path("run/summary.json").exists() and not Path("run/weights.safetensors").exists()


def test_a_full_disk_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Here a file may not grow any more, which the system says in the same way."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    write(f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, {hard}))")
    try:
        assert (
            main(["train", "task.py", "--out", "run", "--quiet", "--log-every", "1", "--epochs", "20", "--checkpoint-every", "4"])
            == 1
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    *warnings, error = capsys.readouterr().err.splitlines()
    assert warnings[0].startswith("warning: cannot write run/metrics.jsonl: ") and "the training continues" in warnings[0]
    assert any("No checkpoint was saved; the training continues and tries again" in warning for warning in warnings)
    assert error.startswith("unisono: error: cannot write run/")
    assert json.loads(Path("run/status.json").read_text())["state"] == "failed"
    capsys.readouterr()
    Path("task.py").write_text(Path("task.py").read_text().replace("len(calls) == 8", "False"))
    assert main(["train", "task.py", "--out", "run", "--quiet", "--epochs", "20", "--accept-changes"]) == 0, "there is room again"


def test_the_code_in_the_status_is_that_of_the_process() -> None:
    write("from unisono.errors import UsageError; raise UsageError('a mistake that shows late')")
    assert main(["train", "task.py", "--out", "run", "--quiet"]) == 2
    status = json.loads(Path("run/status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("failed", 2)


def test_two_runs_at_once_have_directories_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    """The second is started by the first from within its training."""
    write("from unisono.cli import main; calls.append(main(['train', 'task.py', '--quiet', '--epochs', '1']))")
    assert main(["train", "task.py", "--quiet", "--epochs", "3"]) == 0
    assert capsys.readouterr() == ("finished; results in runs/task-2\nfinished; results in runs/task\n", "")
    assert (summary("runs/task")["epochs"], summary("runs/task-2")["epochs"]) == (3, 1)


# ---- two workers ---------------------------------------------------------------------------------------------------------


def on_two_ranks(fork_server: ForkServer, *options: str) -> GroupResult:
    return fork_server.run(["-m", "unisono.cli", "train", "task.py", "--out", "run", *options], 2, "shm", LIMIT_S)


def test_all_ranks_stop_at_the_step_in_which_one_was_signalled(fork_server: ForkServer) -> None:
    write("os.kill(os.getpid(), signal.SIGTERM) if RANK == '1' else None")
    ended = on_two_ranks(fork_server, "--monitor", "--timeline")
    assert ended.exit_code == 75, ended
    assert ended.output.count(f"interrupted: {STEPS} steps") == 1 and "error" not in ended.output, ended
    expect_all_written()
    assert {path.name for path in Path("run/monitor").iterdir()} == {"rank-0.jsonl", "rank-1.jsonl"}
    assert Path("run/timeline.json").exists()


def test_ctrl_c_ends_a_loop_over_seeds_on_all_ranks(fork_server: ForkServer) -> None:
    write("os.kill(os.getpid(), signal.SIGINT) if RANK == '1' else None")
    loop = """
    import unisono as un

    try:
        for seed in (1, 2):
            un.train("task.py", out=f"run-{seed}", seed=seed, show=False)
    except KeyboardInterrupt:
        print("left the loop", flush=True)
    """
    Path("seeds.py").write_text(dedent(loop))
    ended = fork_server.run([str(Path("seeds.py").absolute())], 2, "shm", LIMIT_S)
    assert ended.exit_code == 0 and ended.output.count("left the loop") == 2, ended
    expect_all_written("run-1")
    assert not Path("run-2").exists()


def test_a_loss_that_is_no_number_is_reported_once_with_its_step_and_samples(fork_server: ForkServer) -> None:
    write("return float('nan') if RANK == '1' else None")
    ended = on_two_ranks(fork_server)
    assert ended.exit_code == 1, ended
    (message,) = (line for line in ended.output.splitlines() if "unisono: error: " in line)
    assert "the loss or gradient of step 7 is not finite (nan)" in message and "rank 1: " in message
    assert message.endswith("(the results so far are in run)")
    assert (summary()["reason"], summary()["steps"], summary()["replicas_equal"]) == ("not finite", 8, True)


def test_updates_that_a_sample_spoils_are_left_out_where_asked(fork_server: ForkServer) -> None:
    more = """
    class Spoiled(un.Source):
        def __len__(self):
            return 60

        def read(self, indices):
            return np.where((indices == 55)[:, None], np.nan, INPUTS[indices]), LABELS[indices]

    task = replace(task, data=lambda: un.Splits(Spoiled()))
    """
    write(more=more)
    ended = on_two_ranks(fork_server, "--on-nan", "skip", "--epochs", "2")
    assert ended.exit_code == 0, ended
    warnings = [line for line in ended.output.splitlines() if line.startswith("warning: ")]
    place = (
        r"step \d is not finite \(nan\): on rank [01] sample 55, whose data hold NaN or infinity at \[0\]; the update is left out"
    )
    assert len(warnings) == 2 and all(re.search(place, line) for line in warnings), ended
    found = summary()
    assert (found["reason"], found["steps"], found["num_skipped_updates"], found["replicas_equal"]) == ("finished", 6, 2, True)


# ---- under our launcher --------------------------------------------------------------------------------------------------


def launched(*options: str) -> Program:
    return Program([sys.executable, "-m", "unisono", "train", "task.py", "-n", "2", "--out", "run", *options], plain_environment())


def test_ctrl_c_of_the_launcher_reaches_all() -> None:
    write(CTRL_C)
    with launched() as program:
        ended = program.finish(LIMIT_S)
    assert ended.code == 75, ended
    lines = [line for line in ended.output.splitlines() if not line.startswith("epoch ")]
    assert lines[1].endswith("interrupted: all ranks are stopping; press Ctrl-C again to kill them"), ended
    assert lines[2] == f"stopped (Ctrl-C); run the same command to resume from step {STEPS}", ended
    assert lines[3].startswith("interrupted: ") and lines[4].startswith("results in run: ") and len(lines) == 5, ended
    assert summary()["reason"] == "interrupted" and summary()["replicas_equal"]


def test_a_second_ctrl_c_kills_all() -> None:
    """The second is sent once both ranks have heard of the first."""
    write(f"{CTRL_C}    RANK == '0' and os.kill(os.getppid(), signal.SIGINT)\n    signal.pause()")
    with launched("--quiet") as program:
        ended = program.finish(LIMIT_S)
    assert ended.code == 130 and "interrupted again: killing all ranks" in ended.output, ended
    assert not Path("run/summary.json").exists()


def test_a_killed_worker_is_named_and_ends_all() -> None:
    write("RANK == '1' and os.kill(os.getpid(), signal.SIGKILL)")
    with launched("--quiet") as program:
        ended = program.finish(LIMIT_S)
    assert ended.code == 137 and "rank 1 was killed by signal 9 (SIGKILL)" in ended.output, ended
    assert "Traceback" not in ended.output, ended


def test_it_ends_silently_when_its_reader_leaves() -> None:
    write()
    command = [sys.executable, "-m", "unisono", "train", "task.py", "--out", "run", "--epochs", "1000000"]
    with subprocess.Popen(command, env=plain_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert b"1 worker " in process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(LIMIT_S) == 141


# ---- from a notebook -----------------------------------------------------------------------------------------------------

CELL = """
scale = 2

def scaled(inputs):
    return inputs * scale

task = replace(task, epochs=2, name="cell", data=lambda: un.Splits(un.as_source((INPUTS, LABELS)).map_inputs(scaled)))
ended = un.train(task, workers=2, show=False, lr=0.2)
print(ended.out.name, ended.summary["num_workers"], ended.summary["steps"], ended.summary["config"]["settings"]["lr"])
un.train(task, workers=2, show=False, set={"model.widht": 3})
"""


def test_a_task_of_a_notebook_cell() -> None:
    Path("cell.py").write_text(f"exec(compile({TASK + CELL!r}, '<cell>', 'exec'), {{'__name__': '__main__'}})\n")
    with Program([sys.executable, "cell.py"], plain_environment()) as program:
        ended = program.finish(LIMIT_S)
    result, mistake = ended.output.splitlines()
    assert ended.code == 2 and result == "cell 2 6 0.2", ended
    assert mistake.startswith("unisono: error: unknown name 'model.widht' in --set"), ended
