"""Trainings in this process that go the way of a GPU on a CPU: recorded steps, sums that come late, data that lie on the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch._inductor.config  # the first optimiser loads it, and it sets a variable of the environment
from torch import Tensor, nn

import unisono as un
from unisono.algorithms.allreduce import AllReduce
from unisono.algorithms.sharded import Sharded
from unisono.comm.base import Communicator
from unisono.comm.single_process import single_process_communicator
from unisono.events import Observer, StepDone
from unisono.metrics.base import Metric
from unisono.metrics.hits import Accuracy
from unisono.model.torch.captured_steps import CapturedSteps
from unisono.model.torch.recorder import Recorder
from unisono.task.overrides import change
from unisono.task.task import Task
from unisono.training.frontends import assemble
from unisono.training.progress import Progress
from unisono.training.run_hooks import RunHooks
from unisono.training.trainer import Trainer
from unisono.training.training_parts import AssemblyOptions, TrainingParts

HOST, STREAMED, RESIDENT = "host", "streamed", "resident"
"""Where batches are made: by the host; on the device, of samples that the host reads; on the device, of samples that lie there."""

NUM, BATCH, SIDE = 58, 12, 6
"""Five steps in an epoch, the last of ten samples."""
_RANDOM = np.random.default_rng(3)
PICTURES = _RANDOM.integers(0, 255, size=(NUM + 10, 1, SIDE, SIDE), dtype=np.uint8)
LABELS = _RANDOM.integers(0, 4, size=NUM + 10)


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(3 * (SIDE - 2) ** 2, 4)
    )


def pictures() -> un.Splits:
    """Small pictures as uint8, scaled by a declared change."""
    whole = un.Arrays(PICTURES, LABELS).map_inputs(un.Scale(1 / 64))
    return un.Splits(whole.subset(np.arange(NUM)), validation=whole.subset(np.arange(NUM, NUM + 10)))


def task_of(**more: Any) -> Task:
    """A task with everything that has a state or draws numbers; its optimiser can leave out an update on the device."""
    options = {"fused": True, **more.pop("optimizer_options", {})}
    options = {name: value for name, value in options.items() if value is not None}
    usual = {"model": net, "data": pictures, "loss": "cross_entropy", "metrics": ("accuracy",), "lr": 0.05, "name": "task"}
    return Task(**{**usual, "global_batch": BATCH, "epochs": 3, "optimizer_options": options, **more})


@dataclass(frozen=True)
class Trained:
    """What is left of a training."""

    weights: Mapping[str, Tensor]
    """Parameters and buffers."""
    progress: Progress
    steps: Sequence[StepDone]
    said: Sequence[str]
    parts: TrainingParts

    @property
    def captured(self) -> CapturedSteps:
        algorithm: Any = self.parts.algorithm
        algorithm = getattr(algorithm, "_inner", algorithm)
        assert isinstance(algorithm, (AllReduce, Sharded)) and algorithm.captured is not None
        return algorithm.captured


@dataclass
class Listener(Observer):
    steps: list[StepDone]
    said: list[str]

    def step(self, event: StepDone) -> None:
        self.steps.append(event)

    def say(self, text: str) -> None:
        self.said.append(text)


Train = Callable[..., Trained]


def train_with(patched: pytest.MonkeyPatch) -> Train:
    """Returns a function that trains a task to its end, with this recorder and its batches made there."""

    def train(
        task: Task,
        recorder: Recorder | None = None,
        data: str = HOST,
        algorithm: str = "allreduce",
        on_nan: str = "stop",
        max_steps: int | None = None,
        hooks: RunHooks = RunHooks(),  # noqa: B008 - it cannot change
        comm: Communicator | None = None,
    ) -> Trained:
        patched.setattr(assemble, "recorder_for", lambda *_: recorder)
        patched.setattr(assemble, "makes_batches_on", lambda *_: data != HOST)
        patched.setattr(Accuracy, "quick_sums", Metric.quick_sums)  # NumPy, which is for sums on the host
        options = AssemblyOptions(on_nan=on_nan, resident="auto" if data == RESIDENT else "off")
        comm = comm or single_process_communicator()
        parts = assemble.assemble(change(task, {}), algorithm, comm, options)
        heard = Listener([], [])
        trainer = Trainer(comm=comm, parts=parts, evaluation_batch=7, observers=(heard,), max_steps=max_steps, hooks=hooks)
        done = trainer.train()
        weights = {name: tensor.detach().clone() for name, tensor in parts.adapter.model.state_dict().items()}
        return Trained(weights, done, heard.steps, heard.said, parts)

    return train


def expect_same(found: Trained, expected: Trained) -> None:
    """Weights, buffers, sums of each step and metrics of each epoch, bit for bit."""
    assert found.weights.keys() == expected.weights.keys()
    for name, tensor in expected.weights.items():
        assert torch.equal(found.weights[name], tensor), name
    assert [(one.step, one.loss) for one in found.steps] == [(one.step, one.loss) for one in expected.steps]
    assert [row["metrics"] for row in found.progress.history] == [row["metrics"] for row in expected.progress.history]
    assert found.progress.num_skipped == expected.progress.num_skipped
