"""Copies of a state in memory that is kept, and made ahead in a thread."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import unisono as un
from unisono.algorithms.base import LockStepAlgorithm, StepInfo
from unisono.data.sources.arrays import Arrays
from unisono.model.base import StreamKey
from unisono.task.overrides import change
from unisono.training.checkpointing.checkpoint import Checkpoints, CheckpointStore
from unisono.training.checkpointing.host_buffers import HostBuffers
from unisono.training.checkpointing.saving import SaveInterval, Saving
from unisono.training.frontends.assemble import assemble

TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool)


def state(value: float) -> dict[str, Tensor]:
    found = {str(dtype): torch.full((3, 5), value).to(dtype) for dtype in TYPES}
    return {**found, "scalar": torch.tensor(value), "empty": torch.zeros(0, 4), "turned": torch.full((4, 2), value).t()}


def places(tensors: dict[str, Tensor]) -> dict[str, int]:
    return {name: tensor.data_ptr() for name, tensor in tensors.items() if tensor.numel()}


def nothing_more_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    for thread in threading.enumerate():
        if thread.name == "unisono-staging":
            thread.join()
    monkeypatch.setattr(
        "unisono.training.checkpointing.host_buffers._buffer_like", lambda tensor: pytest.fail(f"memory is made for {tensor}")
    )


@pytest.mark.parametrize("prepared", [True, False])
def test_a_copy_is_equal_and_stays_as_it_was(prepared: bool) -> None:
    buffers, now = HostBuffers(), state(1)
    if prepared:
        buffers.prepare(now)
    copied = buffers.copy(now)
    for tensor in now.values():
        tensor.fill_(7)
    for name, tensor in state(1).items():
        assert copied[name].dtype == tensor.dtype
        assert torch.equal(copied[name], tensor)


def test_the_next_copy_is_in_the_same_memory() -> None:
    buffers = HostBuffers()
    first = places(buffers.copy(state(1)))
    again = buffers.copy(state(2))
    assert places(again) == first
    assert torch.equal(again["scalar"], torch.tensor(2.0))


def test_the_first_copy_is_in_the_memory_that_was_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = HostBuffers()
    buffers.prepare(state(1))
    nothing_more_is_made(monkeypatch)
    assert torch.equal(buffers.copy(state(2))["scalar"], torch.tensor(2.0))


def test_a_training_prepares_for_its_whole_state_after_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = un.Task(
        model=lambda: nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)),
        data=lambda: un.Splits(train=Arrays(torch.rand(8, 2), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]))),
        loss="cross_entropy",
        optimizer="Adam",
        global_batch=8,
    )
    with un.connect(quiet=True) as comm:
        parts = assemble(change(task, {}), "allreduce", comm)
        assert isinstance(parts.algorithm, LockStepAlgorithm)
        store = CheckpointStore(Checkpoints(tmp_path / "checkpoints", keep=1))
        saving = Saving(adapter=parts.adapter, algorithm=parts.algorithm, interval=SaveInterval(), store=store, say=pytest.fail)
        parts.algorithm.start()
        assert not saving.is_due_by_clock()
        (portion,) = parts.loader.epoch(0, 0)
        assert parts.algorithm.step(portion.micro_batches, StepInfo(0, StreamKey(0, 0, 0), parts.settings(0), 8, False, False))
        assert not saving.is_due_by_clock()
        nothing_more_is_made(monkeypatch)
        saving.save(1, {}, mid_epoch=True, is_last=True)
        assert saving.finish() is None
        parts.algorithm.finish()
    loaded = Checkpoints(tmp_path / "checkpoints", keep=1).newest()
    assert loaded is not None
    assert torch.equal(loaded.snapshot.tensors["model.0.weight"], parts.adapter.model.state_dict()["0.weight"])


def test_what_changes_its_shape_or_type_gets_other_memory() -> None:
    buffers = HostBuffers()
    buffers.prepare({"a": torch.zeros(3), "b": torch.zeros(3)})
    copied = buffers.copy({"a": torch.ones(5), "b": torch.ones(3, dtype=torch.int64), "new": torch.ones(1)})
    assert {name: (tensor.dtype, tensor.tolist()) for name, tensor in copied.items()} == {
        "a": (torch.float32, [1.0] * 5),
        "b": (torch.int64, [1, 1, 1]),
        "new": (torch.float32, [1.0]),
    }
