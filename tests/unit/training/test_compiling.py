"""Whether a model is compiled: decided once, kept when a run resumes, refused where it cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import unisono as un
from tests.unit.training.device_path import expect_same, net, pictures, task_of, train_with
from unisono.errors import UsageError
from unisono.model.torch.compiled_loss import CompiledLoss
from unisono.task.task import Task
from unisono.training import compiling
from unisono.training.compiling import choose, operations_of_sample

CPU, GPU = torch.device("cpu"), torch.device("cuda")


class Placed:
    """A model whose parameters say that they are on this device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def parameters(self) -> Iterator[Any]:
        return (SimpleNamespace(device=self._device) for _ in net().parameters())


def choice(
    task: Task, device: torch.device = GPU, before: str | None = None, steps: int = 5, can_compile: bool = True
) -> tuple[str, str]:
    model: Any = Placed(device)
    return choose(task, model, pictures().train, steps, before, can_compile)


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Operations of a sample, as if they were counted on a GPU."""
    return lambda operations: monkeypatch.setattr(compiling, "operations_of_sample", lambda *_: operations)


def test_auto_compiles_where_it_pays(on_gpu: Callable[[float], None]) -> None:
    on_gpu(1e6)
    decided, note = choice(task_of(epochs=1))
    assert decided == "off" and note.startswith("the model is not compiled: that takes about 12 s and would save about 0 s")
    decided, note = choice(task_of(epochs=10**6))
    assert decided == "on" and note.startswith("the model is compiled: that takes about 12 s and would save about 375 s")
    on_gpu(1e12)
    assert choice(task_of(epochs=100))[0] == "on", "few steps, but long ones"
    assert choice(task_of(epochs=100), CPU) == ("off", "")
    assert choice(task_of(epochs=100, shards=2)) == ("off", ""), "the bits would be others than before"


def test_what_was_decided_stays(on_gpu: Callable[[float], None]) -> None:
    """Also with more epochs, and on another machine."""
    on_gpu(1e12)
    assert choice(task_of(epochs=100), before="off") == ("off", "")
    assert choice(task_of(epochs=1), before="on") == ("on", "")
    assert choice(task_of(epochs=1), CPU, before="on") == ("on", "")
    for asked in ("on", "off"):
        assert choice(task_of(compile=asked), before="off") == (asked, ""), "the record refuses other settings"


def test_operations_are_counted() -> None:
    """Oracle: two for each product of the convolution and of the last layer."""
    found = operations_of_sample(net(), pictures().train, CPU)
    assert found == 2 * (4 * 4 * 3 * 9 + 48 * 4)
    model: Any = net()
    model[1].eval()
    operations_of_sample(model, pictures().train, CPU)
    assert model.training and model[0].training and not model[1].training, "modes stay as the user has set them"


def test_what_cannot_be_compiled_is_refused() -> None:
    def own_step(self: Any, batch: Any) -> None: ...

    with pytest.raises(UsageError, match="--compile on has no effect with a step of its own; leave it out"):
        choice(task_of(step=own_step, compile="on"))
    with pytest.raises(UsageError, match=r"--compile on has no effect with a Keras model or a LightningModule, .*; leave it out"):
        choice(task_of(compile="on"), can_compile=False)
    assert choice(task_of(step=own_step)) == choice(task_of(), can_compile=False) == ("off", "")


# ---- the compiler ------------------------------------------------------------------------------------------------------


def broken(graph: Any, inputs: Any) -> Any:
    raise OSError("no space for kernels\nand a long story")


@pytest.fixture
def broken_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda what, **options: compile_(what, **options, backend=broken))
    torch._dynamo.reset()


@pytest.mark.usefixtures("broken_compiler")
def test_a_broken_compiler_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the numbers of a training that is not compiled."""
    train = train_with(monkeypatch)
    expected = train(task_of(epochs=1))
    monkeypatch.setattr("unisono.training.frontends.assemble._compiles", lambda *_, **__: ("on", "compiled, as it pays"))
    found = train(task_of(epochs=1))
    (said,) = found.said
    assert said.startswith("the model cannot be compiled, so it is computed as it is: ") and "no space for kernels" in said
    expect_same(found, expected)


@pytest.mark.usefixtures("broken_compiler")
def test_a_broken_compiler_is_told_to_who_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told = r"the model cannot be compiled \(--compile on\): .*no space for kernels.*; leave --compile out, or use --compile off"
    with pytest.raises(UsageError, match=told):
        train_with(monkeypatch)(task_of(epochs=1, compile="on"))


def test_errors_of_the_model_stay_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A size that is not usual is not compiled; an error that is not the compiler's is raised as it is."""
    calls = list[int]()

    def compiled(model: nn.Module, loss: Any, batch: Any) -> Any:
        calls.append(len(batch[0]))
        raise ZeroDivisionError("in the model")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: compiled)
    said = list[str]()
    compute = CompiledLoss(lambda *_: "as it is", frozenset({4}), False, said.append)
    assert compute(net(), None, (np.zeros((3, 1)), np.zeros(3))) == "as it is"
    with pytest.raises(ZeroDivisionError, match="in the model"):
        compute(net(), None, (np.zeros((4, 1)), np.zeros(4)))
    assert calls == [4] and said == []


# ---- the record --------------------------------------------------------------------------------------------------------


def test_a_record_names_it_only_where_it_is_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So runs of earlier versions resume; what was decided stands where `auto` said it."""
    monkeypatch.setattr(torch, "compile", lambda what, **_: what)
    task = task_of(epochs=2)
    for out, asked, recorded in (("off", "off", None), ("auto", "auto", None), ("on", "on", "on")):
        ended = un.train(task, out=tmp_path / out, show=False, compile=asked, max_steps=2)
        assert ended.summary["reason"] == "interrupted"
        settings = json.loads((tmp_path / out / "config.json").read_text())["settings"]
        assert settings.get("compile") == recorded
        again = un.train(task, out=tmp_path / out, show=False, max_steps=3)
        assert again.summary["steps"] == 3, "auto takes what was decided"
    with pytest.raises(UsageError, match="compile"):
        un.train(task, out=tmp_path / "on", show=False, compile="off")
