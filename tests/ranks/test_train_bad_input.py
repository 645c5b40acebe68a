"""`unisono train` and `un.train` given what cannot work: one message with fact, place and remedy before work starts, exit code 2,
nothing made and nothing lost; an error in the user's own code keeps its traceback. With several ranks all of it comes once."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from tests.system.fork_server import ForkServer
from tests.system.processes import plain_environment, run_together
from unisono.cli import main

LIMIT_S = 60.0
TASK = """
from dataclasses import replace

import numpy as np
from torch import nn

import unisono as un

LABELS = np.arange(60) % 3
INPUTS = np.eye(3, 4, dtype=np.float32)[LABELS]


def model(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))


def data(num: int = 60) -> un.Splits:
    return un.split((INPUTS[:num], LABELS[:num]), validation=0.2, test=0.2)


task = un.Task(model=model, data=data, loss="cross_entropy", metrics=("accuracy",), lr=0.1, global_batch=16, epochs=1)
"""


class Command:
    """`unisono train` in this process, with a task that is TASK and what a test adds to it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def __call__(self, more: str = "", *options: str, code: int = 2) -> str:
        """All that it printed on standard error; on standard output nothing if it is refused."""
        (self.folder / "task.py").write_text(TASK + dedent(more))
        assert main(["train", "task.py", *options]) == code
        out, error = self._capsys.readouterr()
        assert code == 0 or not out
        return error

    def refused(self, more: str = "", *options: str) -> str:
        """The one message; a refused run makes no directory."""
        before = set(self.folder.rglob("*"))
        error = self(more, *options)
        assert error.startswith("unisono: error: ") and error.count("\n") == 1, error
        made = {path for path in self.folder.rglob("*") if path.name != "task.py" and "__pycache__" not in path.parts}
        assert made <= before, made
        return error.removeprefix("unisono: error: ").rstrip("\n")


@pytest.fixture
def train(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    for name in set(os.environ) - set(plain_environment()):
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    yield Command(tmp_path, capsys)
    for name, module in list(sys.modules.items()):
        if tmp_path in Path(getattr(module, "__file__", None) or "").parents:
            del sys.modules[name]


def of_splits(splits: str, **settings: str) -> str:
    """Task text: other data, and settings of the task as they are written."""
    given = "".join(f", {name}={value}" for name, value in settings.items())
    return f"task = replace(task, data=lambda: un.Splits({splits}){given})\n"


# ---- the command ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("-n 0", "-n (workers) must be a whole number of at least 1; received 0"),
        ("--epochs x", "--epochs must be a whole number of at least 1; received 'x'"),
        ("--epochs 0", "--epochs must be a whole number of at least 1; received 0"),
        ("--lr -1", "--lr must be a finite number above 0; received -1"),
        ("--set model.width=abc", "--set model.width must be a whole number; received 'abc'"),
        ("--set model.widht=3", "unknown name 'model.widht' in --set; did you mean 'model.width'?"),
        ("--set metrics=acuracy", "unknown metric 'acuracy'; did you mean 'accuracy'"),
        ("--set optimizer=adm", "unknown optimizer 'adm'; did you mean 'adam'"),
        ("--set optimizer.momentun=0.9", "unknown option 'momentun' of optimizer sgd; did you mean 'momentum'"),
        ("--set loss=cross_entrpy", "unknown loss 'cross_entrpy'; did you mean 'cross_entropy'"),
        ("--set schedule=cosin", "unknown schedule 'cosin'; did you mean 'cosine'"),
        ("--best val_f1", "the task has no metric 'val_f1' (monitor, --best); known: val_accuracy, val_loss"),
        ("--monitor val_f1", "use --best val_f1"),
        ("--set monitor=val_f1", "the task has no metric 'val_f1' (monitor, --best); known: val_accuracy, val_loss"),
        ("--lr 1 --set lr=2", "--lr and --set lr are the same setting"),
        ("--global-batch 4 --local-batch 4", "--local-batch and --global-batch both set the batch"),
        ("--algorithm allreduc", "--algorithm must be one of allreduce, "),
        ("--group 2", "--group 2 has no effect with --algorithm allreduce"),
        ("--group 0", "--group must be a whole number of at least 1; received 0"),
        ("--algorithm diloco --group 2", "1 process cannot form workers of 2 (--group)"),
        ("--algorithm local_sgd --set algorithm.period=0", "period must be a whole number of at least 1"),
        ("--init-from gone.safetensors", "there is no weights file gone.safetensors"),
        ("--on-nan go", "--on-nan must be one of stop, skip; received 'go'"),
        ("--threads 100000000", "--threads must be a whole number from 1 to 4096; received 100000000"),
        ("--epoch 3", "unisono train does not know '--epoch'; did you mean '--epochs'?"),
    ],
)
def test_an_option_that_cannot_be(train: Command, options: str, words: str) -> None:
    assert words in train.refused("", *options.split())


def test_a_task_file_that_is_none(train: Command, capsys: pytest.CaptureFixture[str]) -> None:
    for name, words in ((".", "is a folder"), ("tusk.py", "tusk.py does not exist; in . there are task.py")):
        (train.folder / "task.py").touch()
        assert main(["train", name, "-n", "2"]) == 2  # told before any worker starts
        assert words in capsys.readouterr().err
    assert "task.py, line 1: invalid syntax" in _refused_text(train, "def f(:\n")
    assert "task.py defines no `task`" in _refused_text(train, "x = 1\n")
    assert "sys.exit(0) was called" in _refused_text(train, "import sys\nsys.exit(0)\n")


def _refused_text(train: Command, text: str) -> str:
    (train.folder / "task.py").write_text(text)
    assert main(["train", "task.py"]) == 2
    return train._capsys.readouterr().err


# ---- the task and its data -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("model=lambda: 3", "model of the task must return a torch.nn.Module or a Keras model; it returned a int"),
        ("model=model()", "model of the task is an instance of Sequential; give the function that makes it"),
        ("model=nn.Identity", "the model has no trainable parameters"),
        ("model=lambda: nn.Linear(5, 3)", "the model cannot take the first samples of the training data"),
        (
            "model=lambda: nn.Sequential(nn.Linear(5, 3))",
            "each float32 of shape (4,): layer '0', Linear(in_features=5, out_features=3",
        ),
        ("model=lambda: nn.Sequential(nn.Linear(5, 3))", "bias=True), raises mat1 and mat2 shapes cannot be multiplied"),
        (
            "data=lambda: (INPUTS, LABELS)",
            "data of the task must return un.Splits(train=..., validation=..., test=...); it returned a tuple",
        ),
        ("data=lambda: None", "it returned nothing (did it forget to return?)"),
        ("metrics=3", "metrics of the task must be a tuple of names or functions; received 3"),
        ("loss='mse'", "loss 'mse': targets of shape (2,) do not fit outputs of shape (2, 3)"),
        ("loss=nn.CrossEntropyLoss()", "loss 'CrossEntropyLoss' reduces its losses to one number"),
        ("augment=3", "augment of the task must be a function"),
    ],
)
def test_a_task_that_cannot_be(train: Command, more: str, words: str) -> None:
    assert words in train.refused(f"task = replace(task, {more})\n")


@pytest.mark.parametrize(
    ("splits", "words"),
    [
        ("(INPUTS[:0], LABELS[:0])", "the training data are empty"),
        ("(INPUTS[:5], LABELS[:4])", "have different numbers of samples ([0]: 5, [1]: 4)"),
        ("(INPUTS, LABELS + 1)", "sample 2 of the training data has label 3, but the model has 3 outputs"),
        ("(INPUTS, LABELS - 1)", "sample 0 of the training data has label -1"),
        ("(INPUTS, LABELS.astype(float))", "targets are float32, but class numbers are needed"),
        ("(INPUTS, LABELS.astype(str))", "[1] holds text, not numbers"),
        ("INPUTS", "received a tuple of 1; change the data of the task"),
        ("(INPUTS, LABELS), validation=INPUTS", "(the first samples of the validation data)"),
        ("(INPUTS, LABELS), test=(INPUTS[:, :2], LABELS)", "the model cannot take the first samples of the test data"),
        ("(INPUTS.reshape(-1, 2, 2), LABELS)", "begin the model with nn.Flatten(), or give samples of shape (4,)"),
        ("(INPUTS.astype(int), LABELS)", "each int64 of shape (4,)"),
    ],
)
def test_data_that_do_not_fit(train: Command, splits: str, words: str) -> None:
    assert words in train.refused(of_splits(splits))


def test_an_hdf5_file_that_is_broken(train: Command) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(train.folder / "whole.h5", "w") as file:
        file["x"], file["y"], file["few"] = np.zeros((60, 4), np.float32), np.zeros(60, int), np.zeros(40, int)
    whole = (train.folder / "whole.h5").read_bytes()
    (train.folder / "cut.h5").write_bytes(whole[: len(whole) // 2])
    (train.folder / "empty.h5").touch()
    for name, inputs, targets, words in (
        ("empty.h5", "x", "y", "empty.h5 is empty (0 bytes)"),
        ("cut.h5", "x", "y", "cut.h5 cannot be read as an HDF5 file"),
        ("hole.h5", "x", "y", "hole.h5 does not exist; did you mean whole.h5"),
        ("whole.h5", "xs", "y", "there is no 'xs' in whole.h5"),
        ("whole.h5", "x", "few", "have different numbers of samples ([0]: 60, [1]: 40)"),
    ):
        assert words in train.refused(of_splits(f"un.HDF5({name!r}, inputs={inputs!r}, targets={targets!r})"))


WITH_NAN = "INPUTS[19, 2] = np.nan\n"


def test_values_that_are_not_finite(train: Command) -> None:
    assert "sample 19 of the training data has NaN or infinity (inputs)" in train.refused(WITH_NAN + of_splits("(INPUTS, LABELS)"))
    part = "un.as_source((INPUTS, LABELS)).subset(np.arange(10, 30))"  # the number is that of the part, as in all messages
    assert "sample 9 of the validation data" in train.refused(
        WITH_NAN + of_splits(f"(LABELS[:, None] + np.zeros(4), LABELS), {part}")
    )
    targets = of_splits("(INPUTS, np.where(INPUTS[:, :3] > 0, np.inf, 0))", loss="'mse'", metrics="()")
    assert "sample 0 of the training data has NaN or infinity (targets)" in train.refused(targets)


def test_values_that_are_not_finite_and_not_used(train: Command) -> None:
    """In samples of no part, in data that are changed before use, and where the user says to go on."""
    part = "un.as_source((INPUTS, LABELS)).subset(np.arange(20, 60))"
    train(WITH_NAN + of_splits(part), code=0)
    train(WITH_NAN + of_splits("un.as_source((INPUTS, LABELS)).map_inputs(np.nan_to_num)"), code=0)
    train(WITH_NAN + of_splits("(INPUTS, LABELS)"), "--on-nan", "skip", "--out", "skipped", code=0)
    assert json.loads(Path("skipped/summary.json").read_text())["num_skipped_updates"] == 1


@pytest.mark.parametrize(
    "more",
    [
        "def data(): raise KeyError('mine')\ntask = replace(task, data=data)\n",
        "def model(): raise KeyError('mine')\ntask = replace(task, model=model)\n",
        "def loss(outputs, targets): raise KeyError('mine')\ntask = replace(task, loss=loss)\n",
        "def metric(outputs, targets): raise KeyError('mine')\ntask = replace(task, metrics=(metric,))\n",
    ],
)
def test_an_error_in_the_users_code_keeps_its_traceback(train: Command, more: str) -> None:
    (train.folder / "task.py").write_text(TASK + more)
    with pytest.raises(KeyError, match="mine") as caught:
        main(["train", "task.py"])
    assert caught.traceback[-1].path == train.folder / "task.py"
    assert not Path("runs").exists()


def test_the_line_of_the_users_model_is_named(train: Command) -> None:
    more = """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 3)
        def forward(self, inputs):
            return self.layer(inputs)
    task = replace(task, model=Net)
    """
    assert "cannot be multiplied (2x4 and 5x3) (" in (found := train.refused(more))
    assert f"{train.folder / 'task.py'}, line {TASK.count(chr(10)) + 7})" in found


# ---- the run directory ---------------------------------------------------------------------------------------------------


def test_a_directory_that_is_taken(train: Command) -> None:
    train("", "--out", "run", code=0)
    kept = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    assert "run holds another run: settings.lr 0.1 before, 0.2 now. Give another --out, or --fresh" in train.refused(
        "", "--out", "run", "--lr", "0.2"
    )
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == kept
    Path("file").touch()
    for out in ("file", "file/run"):
        assert f"cannot write {out}: " in train.refused("", "--out", out)
    assert "--out is empty" in train.refused("", "--out", "")
    assert "weights.safetensors does not fit the model (--init-from): 2 missing" in _wrong_weights(train)


def _wrong_weights(train: Command) -> str:
    narrow = "task = replace(task, model=lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3), nn.Linear(3, 3)))\n"
    return train.refused(narrow, "--init-from", "run/weights.safetensors")


def test_a_directory_in_which_one_may_not_write(train: Command) -> None:
    if os.geteuid() == 0:
        assert "cannot write /proc/run: " in train.refused("", "--out", "/proc/run")
        return
    Path("closed").mkdir(mode=0o500)
    assert "cannot write closed/run: Permission denied; give a place where you may write" in train.refused(
        "", "--out", "closed/run"
    )


def test_two_runs_in_one_directory_at_once(train: Command) -> None:
    """The second is started by the first from within its training."""
    more = """
    def loss(outputs, targets):
        from pathlib import Path
        from unisono.cli import main
        if outputs.requires_grad and not Path("second").exists():
            Path("second").touch()
            Path("second").write_text(str(main(["train", "task.py", "--out", "run"])))
        return nn.functional.cross_entropy(outputs, targets, reduction="none")
    task = replace(task, loss=loss, data=lambda: un.Splits((INPUTS, LABELS)))
    """
    error = train(more, "--out", "run", code=0)
    assert Path("second").read_text() == "2"
    assert error.startswith(f"unisono: error: run is in use by another run (process {os.getpid()} on ")
    assert json.loads(Path("run/summary.json").read_text())["reason"] == "finished"


# ---- several ranks -------------------------------------------------------------------------------------------------------


def one_message(output: str) -> str:
    errors = [line for line in output.splitlines() if "unisono: error: " in line]
    assert len(errors) == 1 and output.count("\n") == 1, output
    return errors[0]


@pytest.fixture
def two_ranks(fork_server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    monkeypatch.chdir(tmp_path)

    def run(more: str, *options: str) -> tuple[int, str]:
        Path("task.py").write_text(TASK + dedent(more))
        ended = fork_server.run(["-m", "unisono.cli", "train", "task.py", *options], 2, "shm", LIMIT_S)
        return ended.exit_code, ended.output

    return run


def test_an_error_of_all_ranks_is_reported_once(two_ranks: Callable[..., tuple[int, str]]) -> None:
    for options, words in (
        (
            ("--global-batch", "1"),
            "global_batch 1 is too small for 2 workers (--global-batch); use at least 2, or fewer workers",
        ),
        (("-n", "3"), "-n requests 3 workers, but 2 were started"),
        (("--set", "model.widht=3"), "did you mean 'model.width'"),
    ):
        code, output = two_ranks("", *options)
        assert code == 2 and words in one_message(output)
        assert not Path("runs").exists()


NORM = "task = replace(task, model=lambda: nn.Sequential(nn.Linear(4, 8), nn.{}(8), nn.Linear(8, 3)))\n"


def test_batch_norm_over_all_workers_is_refused_and_plain_is_told(two_ranks: Callable[..., tuple[int, str]]) -> None:
    code, output = two_ranks(NORM.format("SyncBatchNorm"))
    assert code == 2 and "module 1 is a SyncBatchNorm, but statistics over all of the 2 workers" in one_message(output)
    assert not Path("runs").exists()
    code, output = two_ranks(NORM.format("BatchNorm1d"))
    assert code == 0 and output.count("batch-norm (module 1) takes its statistics from the samples of each worker") == 1, output


def test_what_one_rank_sees_ends_all(two_ranks: Callable[..., tuple[int, str]]) -> None:
    on_one = "import os\nalone = os.environ['UNISONO_RANK'] == '1'\n"
    code, output = two_ranks(f"{on_one}{of_splits('(INPUTS, LABELS + alone)')}")
    assert code == 2 and "has label 3" in one_message(output)
    code, output = two_ranks(f"{on_one}task = replace(task, data=lambda: data() if not alone else 1 / 0)\n")
    assert code == 1 and output.count("Traceback") == 1 and output.count("ZeroDivisionError: division by zero") == 1, output
    code, output = two_ranks(f"{on_one}task = replace(task, data=lambda: data() if not alone else os.sys.exit())\n")
    assert code == 2 and "sys.exit() was called while the workers prepare" in one_message(output)


def test_the_launchers_of_others_say_it_once_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With our own launcher there is nothing but the message; mpirun adds its own words."""
    monkeypatch.chdir(tmp_path)
    Path("task.py").write_text(TASK)
    train = [sys.executable, "-m", "unisono", "train", "task.py", "--global-batch", "1"]
    commands = [[*train, "-n", "2"]]
    if mpirun := shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"):
        commands.append([mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "2", *train])
    own, *others = run_together(commands, plain_environment(), LIMIT_S)
    assert own.code == 2 and "too small for 2 workers" in one_message(own.output), own
    for other in others:
        assert other.code == 2 and other.output.count("unisono: error: ") == 1, other


OWN_STEP = """
def step(self, batch):
    inputs, targets = batch
    self.minimise(nn.functional.cross_entropy(self.model(inputs), targets, reduction="none"))

task = replace(task, step=step)
"""


@pytest.mark.parametrize(
    ("more", "options", "told"),
    [
        ("", "--simulate 2", "--simulate has no effect with --algorithm allreduce, which has no server"),
        ("", "--replay here", "there is no here (--replay); give the directory of an asynchronous run"),
        ("", "--algorithm gem --replay task.py", "task.py (--replay) is damaged: no run writes a line like '' (line 1)"),
        ("", "--algorithm gem --simulate 3", "global_batch 16 cannot be divided over 3 workers (--global-batch); use 15 or 18"),
        ("", "--algorithm gem --simulate 20", "global_batch 16 is too small for 20 workers"),
        ("", "--algorithm gem --simulate 0", "--simulate must be a whole number of at least 1; received 0"),
        ("", "--algorithm gem --group 2", "--group 2 needs at least 3 processes, a server and 2 for each worker; you started 1"),
        ("", "--algorithm gem --set simulate.compute_s=1", "--set simulate.compute_s has no effect without --simulate"),
        ("", "--set simulate.compute_s=1", "--set simulate.compute_s has no effect without --simulate"),
        ("", "--algorithm gem --simulate 2 --set simulate.jiter=1", "did you mean 'jitter'?"),
        ("", "--algorithm gem --simulate 2 --set simulate.jitter=much", "jitter must be a number of at least 0"),
        ("", "--algorithm gem --set algorithm.kapa=1", "of --algorithm gem (--set algorithm.kapa); did you mean 'kappa'"),
        (
            "",
            "--algorithm gem --set algorithm.kappa=high",
            "--set algorithm.kappa must be a finite number above 0; received 'high'",
        ),
        ("", "--algorithm gem --set algorithm.clip=0", "--set algorithm.clip must be a finite number above 0; received 0"),
        ("", "--algorithm gem --set algorithm.momentum=high", "momentum must be a finite number of at least 0 and below 1"),
        ("", "--algorithm easgd --set algorithm.rho=high", "rho must be a finite number above 0"),
        ("", "--algorithm easgd --set algorithm.elastic=2", "elastic must be a finite number above 0 and at most 1"),
        ("", "--algorithm easgd --set algorithm.momentum=high", "momentum must be a finite number of at least 0 and below 1"),
        ("", "--algorithm easgd --set algorithm.period=0", "period must be a whole number of at least 1"),
        ("", "--algorithm downpour --set algorithm.local_lr=high", "local_lr must be a finite number of at least 0"),
        ("", "--algorithm downpour --set algorithm.push_every=1.5", "push_every must be a whole number of at least 1"),
        ("", "--algorithm downpour --set algorithm.damping=some", "damping must be one of staleness, off"),
        ("", "--algorithm parameter_server --set algorithm.period=2", "unknown option 'period'"),
        ("task = replace(task, optimizer='adam')", "--algorithm gem", "optimizer 'adam' of the task has no effect; leave it out"),
        ("task = replace(task, clip_norm=1.0)", "--algorithm gem", "clip_norm of the task has no effect; leave it out"),
        (
            "task = replace(task, optimizer='adam')",
            "--algorithm easgd --set algorithm.momentum=0.9",
            "optimizer 'adam' of the task has no effect",
        ),
        (OWN_STEP, "--algorithm gem", "the task's own step makes several; use allreduce"),
        ("", "--algorithm gem --hash-every 2", "--hash-every has no effect with --algorithm gem"),
    ],
)
def test_a_server_refuses_tasks_it_cannot_train(train: Command, more: str, options: str, told: str) -> None:
    assert told in train.refused(more, *options.split())


def test_a_run_repeats_only_itself(train: Command) -> None:
    once = ("--algorithm", "gem", "--simulate", "2", "--quiet", "--epochs", "3")
    train("", *once, "--out", "run", code=0)
    assert "had 2 workers, this one has 4" in train.refused("", *once[:3], "4", "--epochs", "3", "--replay", "run")
    told = train.refused("", *once, "--replay", "run", "--lr", "0.2", "--set", "algorithm.kappa=2")
    assert "was another experiment: settings.lr 0.1 before, 0.2 now; algorithm.kappa" in told
    assert main(["train", "task.py", *once, "--replay", "run", "--out", "again", "--max-steps", "6"]) == 75
    train("", *once, "--replay", "run", "--out", "again", code=0)
    run, again = (json.loads(Path(out, "summary.json").read_text()) for out in ("run", "again"))
    assert again["weights_sha256"] == run["weights_sha256"] and again["steps"] == run["steps"] == 15
