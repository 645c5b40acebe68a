"""However a data set is cut into batches and workers, counts stay exactly equal and gathered scores stay in order."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unisono.comm.base import Communicator
from unisono.comm.single_process import single_process_communicator
from unisono.errors import UsageError
from unisono.metrics import Accumulator, Metric, resolve_metrics
from unisono.metrics.counts import ClassCounts
from unisono.metrics.find_metrics import OF_LOGITS
from unisono.metrics.hits import MOST_TOTALS, HitsAndTotal
from unisono.testing.thread_communicator import run_threads

COUNTED = ("accuracy", "top_2_accuracy", "balanced_accuracy", "precision", "recall_weighted", "f1", "f1_micro", "kappa", "mean_iou")
GATHERED = ("auc", "average_precision")
ROUNDED = ("mse", "rmse", "mae", "r2")
C = 3


def ordered(outputs: Any, targets: Any) -> float:
    """Differs when the order of samples does."""
    return float((outputs[:, 0].astype(np.float64) * np.arange(len(outputs))).sum() + targets.sum())


ordered.gathered = True  # type: ignore[attr-defined]


def right(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.argmax(1) == targets


def samples(num_samples: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    outputs = torch.randn(num_samples, C, generator=random).round(decimals=1)
    return outputs, torch.randint(0, C, (num_samples,), generator=random), torch.rand(num_samples, generator=random)


def evaluate(
    comm: Communicator, metrics: tuple[Metric, ...], cuts: list[int], batch: int, data: tuple[Tensor, ...]
) -> dict[str, float]:
    """As an evaluation does it: rank r has the samples from cuts[r] to cuts[r + 1]."""
    accumulator = Accumulator(metrics)
    for start in range(cuts[comm.rank], cuts[comm.rank + 1], batch):
        stop = min(start + batch, cuts[comm.rank + 1])
        outputs, targets, *weights = (tensor[start:stop] for tensor in data)
        accumulator.add(outputs, targets, weights[0] if weights else None, outputs.double().sum(), float(stop - start))
    accumulator.combine(comm)
    return accumulator.values()


def whole(names: Any, data: tuple[Tensor, ...]) -> dict[str, float]:
    with single_process_communicator() as comm:
        return evaluate(comm, resolve_metrics(names), [0, len(data[0])], max(len(data[0]), 1), data)


@settings(deadline=None, max_examples=25, derandomize=True)
@given(
    num_samples=st.integers(1, 60),
    seed=st.integers(0, 1000),
    batch=st.integers(1, 61),
    inner=st.lists(st.integers(0, 60), max_size=3),
    weighted=st.booleans(),
)
def test_any_division_gives_the_same(num_samples: int, seed: int, batch: int, inner: list[int], weighted: bool) -> None:
    cuts = [0, *sorted(min(cut, num_samples) for cut in inner), num_samples]
    data = samples(num_samples, seed)[: 3 if weighted else 2]
    names = (*COUNTED, *GATHERED, right, *(() if weighted else (ordered,)))
    expected = whole(names, data)
    results = run_threads(len(cuts) - 1, lambda comm: evaluate(comm, resolve_metrics(names), cuts, batch, data))
    for found in results:
        np.testing.assert_equal(found, results[0])  # every rank decides alike
        for name, value in expected.items():
            if weighted or name == "val_loss":
                assert found[name] == pytest.approx(value, rel=1e-9, abs=1e-12, nan_ok=True), name
            else:
                np.testing.assert_equal(found[name], value, name)


@settings(deadline=None, max_examples=10, derandomize=True)
@given(num_samples=st.integers(2, 40), batch=st.integers(1, 41), cut=st.integers(0, 40))
def test_any_division_gives_the_same_errors_but_for_rounding(num_samples: int, batch: int, cut: int) -> None:
    outputs = samples(num_samples, 1)[0]
    data = (outputs, outputs.flip(0) + 1)
    cuts = [0, min(cut, num_samples), num_samples]
    expected = whole(ROUNDED, data)
    for found in run_threads(2, lambda comm: evaluate(comm, resolve_metrics(ROUNDED), cuts, batch, data)):
        assert found == pytest.approx(expected, rel=1e-9)


@settings(deadline=None, max_examples=25, derandomize=True)
@given(num_samples=st.integers(1, 60), seed=st.integers(0, 1000), kind=st.sampled_from(["plain", "weighted", "ignored"]))
def test_sums_that_can_be_recorded_are_the_same(num_samples: int, seed: int, kind: str) -> None:
    outputs, targets, *weights = samples(num_samples, seed)[: 3 if kind == "weighted" else 2]
    reading = OF_LOGITS
    if kind == "ignored":
        targets, reading = torch.where(outputs[:, 0] > 0.3, -1, targets), replace(OF_LOGITS, ignore_label=-1)
    numbers = (outputs.flip(0) + 1, *weights)
    for name in (*COUNTED, *ROUNDED):
        (metric,) = resolve_metrics([name], replace(reading, predicts=None) if name in ROUNDED else reading)
        given = (outputs, *numbers) if name in ROUNDED else (outputs, targets, *weights)
        found = metric.recordable_sums(*given)
        waits = kind == "weighted" and isinstance(metric, ClassCounts)
        assert (found is None) == waits, name
        if found is not None:
            assert found.numpy().tobytes() == metric.sums(*given).numpy().tobytes(), name
    for own in (*GATHERED, right, ordered):
        assert resolve_metrics([own])[0].recordable_sums(outputs, targets) is None


def test_a_label_that_is_no_class_is_refused_when_the_value_is_read() -> None:
    (metric,) = resolve_metrics(["f1_macro"])
    outputs = torch.eye(3)
    sums = [metric.recordable_sums(outputs, torch.tensor(targets)) for targets in ([0, 1, 3], [0, 1, 2])]
    assert sums[0] is not None and sums[1] is not None
    with pytest.raises(UsageError, match=r"some targets are not in 0\.\.2"):
        metric.value((sums[0] + sums[1]).numpy())


def test_an_accuracy_keeps_what_recorded_work_reads() -> None:
    pair = HitsAndTotal()
    hits = torch.tensor(3)
    first = pair.of(hits, 5)
    kept = pair._constants[5, hits.device]
    for total in range(2 * MOST_TOTALS):
        assert pair.of(hits, total).tolist() == [3, total]
    assert pair._constants[5, hits.device] is kept and len(pair._constants) == MOST_TOTALS
    assert pair.of(hits, 5).equal(first)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_ranks_without_samples_take_part(size: int) -> None:
    data = samples(17, 0)[:2]
    names = (*COUNTED, *GATHERED, ordered)
    cuts = [0, *[0] * (size // 2), *[17] * (size - size // 2)]
    for found in run_threads(size, lambda comm: evaluate(comm, resolve_metrics(names), cuts, 5, data)):
        assert found == whole(names, data) | {"val_loss": found["val_loss"]}


@pytest.mark.parametrize("size", [1, 3])
def test_nothing_at_all_is_not_a_number(size: int) -> None:
    names = (*COUNTED, *GATHERED, *ROUNDED, right, ordered)
    for found in run_threads(size, lambda comm: evaluate(comm, resolve_metrics(names), [0] * (size + 1), 5, samples(0, 0)[:2])):
        assert len(found) == 1 + len(names)
        assert all(map(math.isnan, found.values()))


def test_metrics_of_fixed_width_cost_one_message() -> None:
    with single_process_communicator() as comm:
        asked: list[object] = []
        comm.allgather_object = asked.append  # type: ignore[method-assign, assignment]
        data = samples(9, 0)[:2]
        found = evaluate(comm, resolve_metrics(["accuracy"]), [0, 9], 4, data)
    assert not asked
    assert list(found) == ["val_loss", "val_accuracy"]
    assert found["val_accuracy"] == float((data[0].argmax(1) == data[1]).double().mean())


def test_the_loss_is_the_quotient_of_its_sums() -> None:
    accumulator = Accumulator(())
    accumulator.add(None, None, None, torch.tensor(3.0, requires_grad=True), torch.tensor(4.0))
    accumulator.add(None, None, None, torch.tensor(5.0), 12.0)
    assert accumulator.values("test_") == {"test_loss": 0.5}


def test_outputs_that_differ_between_ranks_are_refused() -> None:
    def body(comm: Communicator) -> None:
        accumulator = Accumulator(resolve_metrics(["f1"]))
        accumulator.add(torch.zeros(2, 3 + comm.rank), torch.tensor([0, 1]), None, 0.0, 1.0)
        accumulator.combine(comm)

    with pytest.raises(UsageError, match="metric 'f1': outputs differ in shape between ranks"):
        run_threads(2, body)
