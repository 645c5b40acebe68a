"""Recorded steps on a GPU are bit for bit those that run as they are; where steps cannot be recorded, the reason is said."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._inductor.config  # it is changed below
from torch import nn

import unisono as un
from tests.unit.training.device_path import NUM, SIDE, Listener, Trained, expect_same, task_of
from tests.unit.training.odd_models import (
    BAD,
    Breaks,
    Counter,
    Drawing,
    DrawingNumPy,
    Growing,
    Means,
    Replaced,
    Unused,
    Waiting,
    crop,
    marked,
    plain,
    with_first,
)
from unisono.comm.single_process import single_process_communicator
from unisono.errors import UsageError
from unisono.model.tail import LATEST
from unisono.model.torch.captured_steps import MOST_SIZES
from unisono.task.overrides import change
from unisono.task.task import Task
from unisono.training import resident_data
from unisono.training.frontends.assemble import assemble
from unisono.training.trainer import Trainer
from unisono.training.training_parts import AssemblyOptions

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason="PyTorch sees no GPU; run on a machine with an NVIDIA GPU and a CUDA build of PyTorch: pytest -m gpu",
    ),
]

MOMENTUM = {"optimizer_options": {"momentum": 0.9}}
LIMIT_S = 110


@pytest.fixture(autouse=True)
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Convolutions whose bits do not change from call to call. What compilers leave in the environment is taken out of it."""
    before = dict(os.environ)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch._inductor.config, "compile_threads", 1)  # others are processes that stay
    torch._dynamo.reset()
    yield
    torch.cuda.synchronize()
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def train(task: Task, capture: str = "auto", resident: str = "auto", on_nan: str = "stop", max_steps: int | None = None) -> Trained:
    comm = single_process_communicator("cuda")
    options = AssemblyOptions(on_nan=on_nan, capture=capture, resident=resident)
    parts = assemble(change(task, {}), "allreduce", comm, options)
    assert parts.adapter.device.type == "cuda"
    heard = Listener([], [])
    trainer = Trainer(comm=comm, parts=parts, evaluation_batch=7, observers=(heard,), max_steps=max_steps)
    done = trainer.train()
    weights = {name: tensor.detach().clone() for name, tensor in parts.adapter.model.state_dict().items()}
    return Trained(weights, done, heard.steps, heard.said, parts)


def norms() -> nn.Module:
    """With batch-norm alone: its counters and running statistics are part of what is recorded."""
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * (SIDE - 2) ** 2, 4))


def masks() -> nn.Module:
    """With dropout alone."""
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 4))


CASES: dict[str, dict[str, Any]] = {
    "dropout": {"model": masks},
    "batch-norm": {"model": norms},
    "both": {},
    "accumulate": {"accumulate": 3},
    "no short batch": {"global_batch": NUM, "epochs": 8},
    "clip": {"clip_norm": 0.1},
    "cosine": {"schedule": "cosine"},
}
OPTIMIZERS: dict[str, dict[str, Any]] = {"sgd": MOMENTUM, "adam": {"optimizer": "adam", "lr": 0.01}}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_recorded_steps_are_those_that_run_as_they_are(optimizer: str, name: str) -> None:
    task = task_of(**OPTIMIZERS[optimizer], **CASES[name])
    expected = train(task, "off", "off")
    for resident in ("auto", "off"):
        found = train(task, "auto", resident)
        assert found.captured.reason == "" and not found.said
        expect_same(found, expected)


@pytest.mark.parametrize("name", ["dropout", "batch-norm", "accumulate", "both"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_recorded_steps_that_are_compiled_are_those_that_run_as_they_are(optimizer: str, name: str) -> None:
    task = task_of(**OPTIMIZERS[optimizer], **CASES[name], compile="on")
    expected = train(task, "off")
    found = train(task)
    assert found.captured.reason == "" and not found.said
    expect_same(found, expected)


@pytest.mark.parametrize("precision", ["bf16", "float32"])
@pytest.mark.parametrize("compiled", ["on", "off"])
def test_each_precision_has_its_bits(precision: str, compiled: str) -> None:
    task = task_of(precision=precision, compile=compiled, **MOMENTUM)
    found, expected = train(task), train(task, "off")
    assert found.captured.reason == ""
    expect_same(found, expected)


@pytest.mark.parametrize("case", [{"optimizer": "rmsprop", "optimizer_options": {"fused": None}}, {"shards": 3}])
def test_other_ways_are_recorded_too(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    found, expected = train(task_of(**case)), train(task_of(**case), "off", "off")
    assert found.captured.reason == ""
    expect_same(found, expected)


def test_augmented_samples_are_those_of_the_host() -> None:
    augment = un.augment.Chain(un.augment.Flip(axis=-1), un.augment.Shift(1))
    task = task_of(augment=augment)
    expected = train(task, "off", "off")
    for resident in ("auto", "off"):
        found = train(task, resident=resident)
        assert found.captured.reason == ""
        expect_same(found, expected)


# ---- what runs as it is ------------------------------------------------------------------------------------------------

ODD: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "counter": (Counter, "it changes 0.calls"),
    "list": (Growing, "it changes 0.means"),
    "buffer": (Replaced, "it changes 0.seen"),
    "Python": (Drawing, "it draws from the generator of Python on the host"),
    "NumPy": (DrawingNumPy, "it draws from the generator of NumPy on the host"),
    "item": (Waiting, "odd_models.py, line "),
    "unused": (Unused, "a batch did not use 0.spare.weight"),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("case", [{}, {"accumulate": 2, "optimizer": "adam"}])
def test_a_model_that_cannot_be_recorded_runs_as_it_is(name: str, case: dict[str, Any]) -> None:
    make, reason = ODD[name]

    def run(capture: str) -> Trained:
        random.seed(1)
        np.random.seed(1)
        return train(with_first(make, **case), capture)

    found = run("auto")
    (said,) = (text for text in found.said if text.startswith("steps are not recorded as a CUDA graph, so each takes longer: "))
    assert reason in said
    expect_same(found, run("off"))


def test_changing_shapes_run_as_they_are() -> None:
    task = task_of(model=Means, augment=crop, global_batch=5, epochs=6)
    found, expected = train(task), train(task, "off")
    assert found.captured.reason == f"batches have more than {MOST_SIZES} shapes"
    expect_same(found, expected)


# ---- updates that are left out -----------------------------------------------------------------------------------------

NAN_CASES: list[dict[str, Any]] = [{}, MOMENTUM, {"optimizer": "adam"}, {"accumulate": 2}, {"clip_norm": 0.5}]


@pytest.mark.parametrize("case", NAN_CASES)
def test_an_update_that_is_not_finite_is_left_out(case: dict[str, Any]) -> None:
    task = with_first(Breaks, data=marked, **case)
    found, expected = (train(task, one, on_nan="skip") for one in ("auto", "off"))
    assert found.captured.reason == ""
    assert found.progress.num_skipped == task.epochs
    assert all(f"sample {BAD}" in text for text in found.said) and len(found.said) == task.epochs
    expect_same(found, expected)


@pytest.mark.parametrize("case", NAN_CASES)
@pytest.mark.parametrize("seed", range(2))
def test_a_training_ends_with_the_weights_before_the_bad_step(case: dict[str, Any], seed: int) -> None:
    task = task_of(model=plain, data=marked, global_batch=5, seed=seed, **case)
    found = train(task)
    plan = found.parts.loader.plan
    (step,) = (step for step in range(plan.steps_per_epoch) if BAD in plan.order(0)[plan.batch(step)])
    assert found.progress.reason == "not finite" and found.progress.num_skipped == 1
    assert f"step {step} is not finite (nan): on rank 0 sample {BAD};" in found.progress.failure
    assert step < found.progress.step <= step + LATEST
    before = train(task, "off", max_steps=step) if step else None
    for name, tensor in found.parts.adapter.model.named_parameters():
        assert bool(tensor.isfinite().all())
        assert before is None or torch.equal(tensor, before.weights[name]), name


def test_a_step_in_which_no_sample_counts_leaves_nothing() -> None:
    pictures, labels = marked().train.read(np.arange(NUM))
    weights = np.ones(NUM)
    plan = train(task_of(), max_steps=1).parts.loader.plan
    weights[plan.order(0)[plan.batch(1)]] = 0.0
    task = task_of(data=lambda: un.Splits((pictures, labels, weights)))
    found, expected = train(task), train(task, "off")
    assert found.progress.num_skipped == 1 and found.captured.reason == ""
    expect_same(found, expected)


# ---- a GPU that is full, a compiler that is broken ---------------------------------------------------------------------


def test_data_that_do_not_fit_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = train(task_of())
    monkeypatch.setattr(resident_data, "SHARE", 0.0)
    found = train(task_of())
    assert any("are read by the host in every epoch: they need" in note for note in found.parts.notes)
    expect_same(found, expected)


def broken(graph: Any, inputs: Any) -> Any:
    raise OSError("no space for kernels")


def test_a_broken_compiler_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = train(task_of(compile="off"))
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda what, **options: compile_(what, **options, backend=broken))
    with pytest.raises(UsageError, match=r"cannot be compiled \(--compile on\): .*no space for kernels"):
        train(task_of(compile="on"))
    monkeypatch.setattr("unisono.training.compiling.COST_S", 0.0)
    monkeypatch.setattr("unisono.training.compiling.COST_OF_TENSOR_S", 0.0)
    found = train(task_of())
    assert any("the model is compiled" in note for note in found.parts.notes)
    (said,) = found.said
    assert said.startswith("the model cannot be compiled, so it is computed as it is: ") and "no space for kernels" in said
    assert found.captured.reason == ""
    expect_same(found, expected)


# ---- whole commands ----------------------------------------------------------------------------------------------------

TASK = '''
import os, signal
from pathlib import Path
import torch
from tests.unit.training.device_path import task_of

torch.backends.cudnn.deterministic = True

def rate(step):
    """The schedule is computed before each step; here a process may end."""
    plan = Path("kill-at")
    if plan.exists() and plan.read_text() == str(step):
        plan.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0 / (1 + step)

task = task_of(optimizer="adam", lr=0.01, schedule=rate, epochs=4)
'''
BREAKS = """
compile_ = torch.compile

def broken(graph, inputs):
    raise OSError("no space for kernels")

torch.compile = lambda what, **options: compile_(what, **options, backend=broken)
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Trains the task in a process of its own."""
    monkeypatch.chdir(tmp_path)
    Path("task.py").write_text(TASK)
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{root}:{root / 'src'}")
    words = [sys.executable, "-m", "unisono", "train", "task.py", "--quiet"]
    return lambda *more: subprocess.run([*words, *more], capture_output=True, text=True, timeout=LIMIT_S, check=False)


def summary(out: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(out) / "summary.json").read_text())
    return found


def expect_same_run(out: str, expected: str) -> None:
    for name in ("weights_sha256", "metrics", "steps", "best_epoch"):
        assert summary(out)[name] == summary(expected)[name], name


@pytest.mark.parametrize("compiled", ["off", "on"])
def test_a_stopped_or_killed_training_resumes(command: Callable[..., subprocess.CompletedProcess[str]], compiled: str) -> None:
    options = ("--compile", compiled, "--checkpoint-every", "3")
    assert command("--out", "through", *options).returncode == 0
    assert summary("through")["gpu"]["captured"] is True
    assert command("--out", "plain", "--capture", "off", "--resident", "off", *options).returncode == 0
    expect_same_run("through", "plain")
    assert command("--out", "stopped", "--max-steps", "8", *options).returncode in (0, 75)
    assert command("--out", "stopped", *options).returncode == 0
    expect_same_run("stopped", "through")
    Path("kill-at").write_text("11")
    assert command("--out", "killed", *options).returncode == -9
    assert command("--out", "killed", *options).returncode == 0
    expect_same_run("killed", "through")


def test_a_broken_compiler_that_is_asked_for_ends_with_one_message(
    command: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    Path("task.py").write_text(TASK + BREAKS)
    ended = command("--out", "run", "--compile", "on")
    assert ended.returncode == 2, ended.stderr
    assert "the model cannot be compiled (--compile on): " in ended.stderr and "no space for kernels" in ended.stderr
    assert "Traceback" not in ended.stderr
