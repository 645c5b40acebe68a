"""Losses and metrics on a GPU: the values of the CPU, and no waiting for the device where a training step uses them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from unisono.metrics import Accumulator, resolve_metrics
from unisono.model.losses import resolve_loss

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason="PyTorch sees no GPU; run on a machine with an NVIDIA GPU and a CUDA build of PyTorch: pytest -m gpu",
    ),
]

RANDOM = torch.Generator().manual_seed(1)
LOGITS, VALUES = torch.randn(64, 10, generator=RANDOM), torch.randn(64, 10, generator=RANDOM)
LABELS = torch.randint(0, 10, (64,), generator=RANDOM)
WEIGHTS = torch.rand(64, generator=RANDOM)
OF_LABELS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("cross_entropy", {}),
    ("cross_entropy", {"class_weights": range(10), "ignore_label": 3, "label_smoothing": 0.1}),
    ("nll", {}),
    ("focal", {"class_weights": range(10)}),
    ("dice", {}),
)
OF_VALUES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("bce", {"pos_weight": range(10)}),
    ("mse", {}),
    ("mae", {}),
    ("huber", {}),
    ("smooth_l1", {}),
    ("poisson_nll", {}),
)


@pytest.fixture
def no_waiting() -> Iterator[None]:
    """What is called twice must not wait the second time: constants may travel once."""
    yield
    torch.cuda.set_sync_debug_mode("default")


def twice_without_waiting(work: Any) -> Any:
    work()
    torch.cuda.set_sync_debug_mode("error")
    result = work()
    torch.cuda.set_sync_debug_mode("default")
    return result


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature:UserWarning")
@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize(("name", "options"), (*OF_LABELS, *OF_VALUES))
def test_losses(no_waiting: None, name: str, options: Mapping[str, Any], weights: Tensor | None) -> None:
    targets = LABELS if (name, options) in OF_LABELS else VALUES.sigmoid()
    expected = resolve_loss(name, options)(LOGITS, targets, weights)
    loss, outputs, known = resolve_loss(name, options), LOGITS.cuda(), targets.cuda()
    heavy = None if weights is None else weights.cuda()
    found = twice_without_waiting(lambda: loss(outputs, known, heavy))
    assert [float(part) for part in found] == pytest.approx([float(part) for part in expected], rel=1e-5)


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("name", ["accuracy", "top_5_accuracy", "mse"])
def test_metrics_of_a_step(no_waiting: None, name: str, weights: Tensor | None) -> None:
    targets = VALUES if name == "mse" else LABELS
    (metric,) = resolve_metrics([name])
    expected = metric.sums(LOGITS, targets, weights)
    outputs, known, heavy = LOGITS.cuda(), targets.cuda(), None if weights is None else weights.cuda()
    found = twice_without_waiting(lambda: metric.sums(outputs, known, heavy))
    assert found.is_cuda and found.dtype == torch.float64
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-12, atol=0)


def test_metrics_of_an_evaluation() -> None:
    names = ("accuracy", "f1", "kappa", "mean_iou", "auc", "average_precision")
    results = []
    for device in ("cpu", "cuda"):
        accumulator = Accumulator(resolve_metrics(names))
        for part in (slice(0, 40), slice(40, 64)):
            outputs, targets, weights = (tensor[part].to(device) for tensor in (LOGITS, LABELS, WEIGHTS))
            accumulator.add(outputs, targets, weights, outputs.double().sum(), float(len(outputs)))
        results.append(accumulator.values())
    assert results[0] == pytest.approx(results[1], rel=1e-9)
