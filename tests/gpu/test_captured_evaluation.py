"""Recorded evaluations on a GPU: every bit of evaluations that run as they are, and no wait for the device between batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unisono as un
from unisono.comm.single_process import single_process_communicator
from unisono.metrics import Accumulator, resolve_metrics
from unisono.metrics.find_metrics import OF_LOGITS
from unisono.model.losses import resolve_loss
from unisono.model.torch.adapter import TorchAdapter, trainable
from unisono.model.torch.body import LossBody
from unisono.model.torch.recorder import CudaRecorder
from unisono.training.captured_evaluation import CapturedEvaluation
from unisono.training.evaluation import EvaluationPlan, Shards, evaluate
from unisono.training.resident_data import ResidentSamples, place

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason="PyTorch sees no GPU; run on a machine with an NVIDIA GPU and a CUDA build of PyTorch: pytest -m gpu",
    ),
]

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (1000, 3, 12, 12)).astype(np.uint8)
CLASSES = IMAGES.reshape(1000, -1).sum(1).astype(np.int64) % 5
BATCH = 128  # seven whole batches, and a shorter one


def mean_distance(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.softmax(1) - nn.functional.one_hot(targets, 5)).abs().sum(1)


def right(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.argmax(1) == targets


class Draws(nn.Module):
    """Drops outputs in evaluations too."""

    def forward(self, inputs: Tensor) -> Tensor:
        return nn.functional.dropout(inputs, 0.4)


def network(*last: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    layers = (nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(1600, 5))
    return nn.Sequential(*layers, *last)


class Replica:
    """A replica on the GPU, evaluated as recorded work and as it is."""

    def __init__(self, model: nn.Module, names: Any, precision: str = "float32", is_resident: bool = True) -> None:
        device = torch.device("cuda", 0)
        model.to(device)
        self.adapter = TorchAdapter(
            model,
            LossBody(resolve_loss("cross_entropy")),
            {"": trainable(model)},
            device,
            lambda number, dtype: torch.empty(number, dtype=dtype, device=device),
            precision=precision,
        )
        self.metrics = resolve_metrics(names, OF_LOGITS)
        self.source = un.Arrays(IMAGES, CLASSES).map_inputs(un.Scale(1 / 255))
        self.captured = CapturedEvaluation(self.adapter, CudaRecorder(device), self.metrics)
        placed = place(self.source, device, torch.float32, None, 10**9)
        assert isinstance(placed, ResidentSamples)
        self.samples, self.is_resident = placed, is_resident

    def batches(self, where: slice, batch: int) -> Any:
        for start in range(where.start, where.stop, batch):
            numbers = np.arange(start, min(start + batch, where.stop))
            yield slice(start, start + len(numbers)), self.samples.batch(numbers)

    def evaluate(self, is_captured: bool, shards: int | None = None) -> Any:
        plan = EvaluationPlan(
            self.metrics,
            BATCH,
            shards=None if shards is None else Shards(shards, range(shards), torch.cuda.manual_seed),
            batches=self.batches if self.is_resident else None,
            captured=self.captured if is_captured else None,
        )
        torch.cuda.manual_seed(3)
        with single_process_communicator() as comm:
            return evaluate(comm, self.adapter, self.source, plan, "val_")

    def change_weights(self) -> None:
        with torch.no_grad():
            for parameter in self.adapter.model.parameters():
                parameter.add_(torch.randn(parameter.shape).to(parameter.device), alpha=0.1)


ALL = ("accuracy", "top_2_accuracy", "f1", "kappa", "auc", "average_precision", mean_distance)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("is_resident", [True, False], ids=["resident", "streamed"])
@pytest.mark.parametrize("shards", [None, 3])
@pytest.mark.parametrize("last", [(), (Draws(),)], ids=["plain", "draws"])
def test_bits_are_those_of_evaluations_as_they_are(
    precision: str, is_resident: bool, shards: int | None, last: tuple[nn.Module, ...]
) -> None:
    replica = Replica(network(*last), ALL, precision, is_resident)
    for _ in range(4):
        assert repr(replica.evaluate(True, shards)) == repr(replica.evaluate(False, shards))
        replica.change_weights()
    assert not replica.captured.reason
    assert len(replica.captured._recordings) == (2 if shards is None else 3)


def test_nothing_waits_for_the_device_between_batches() -> None:
    replica = Replica(network(), ("accuracy", "top_2_accuracy", "f1", "kappa", "auc", right))
    for _ in range(2):
        replica.evaluate(True)
    found = Accumulator(replica.metrics)
    torch.cuda.set_sync_debug_mode("error")
    try:
        replica.captured.begin()
        for _, batch in replica.batches(slice(0, 1000), BATCH):
            replica.captured.add(batch, found)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not replica.captured.reason


class Waits(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * float(inputs.abs().max())


def test_a_model_that_waits_for_the_device_runs_as_it_is() -> None:
    replica = Replica(network(Waits()), ("accuracy",))
    for _ in range(2):
        assert repr(replica.evaluate(True)) == repr(replica.evaluate(False))
    assert replica.captured.reason and not replica.captured._recordings


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of torch's compiler
@pytest.mark.parametrize("compiled", ["off", "on"])
def test_a_training_gives_the_same_metrics(tmp_path: Path, compiled: str) -> None:
    """The evaluations of a whole training, whose steps are recorded too, and the test data with the best weights."""

    def trained(capture: str) -> dict[str, Any]:
        task = un.Task(
            model=network,
            data=data,
            loss="cross_entropy",
            metrics=ALL,
            optimizer="adam",
            lr=0.01,
            global_batch=48,
            epochs=4,
            monitor="val_f1",
        )
        found = un.train(task, out=tmp_path / capture, show=False, capture=capture, compile=compiled).summary
        assert found["device"].startswith("cuda")
        return {"weights": found["weights_sha256"], **found["metrics"]}

    assert trained("auto") == trained("off")


def data() -> un.Splits:
    return un.split(un.Arrays(IMAGES, CLASSES).map_inputs(un.Scale(1 / 255)), validation=0.3, test=0.2)
