"""Metrics read outputs as the loss says it: logits, probabilities, one-hot targets, the class on the last axis. What is not known
is refused. Equal to scikit-learn's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from torch import Tensor, nn
from torch.nn import functional

from unisono.errors import UsageError
from unisono.metrics import GatheredMetric, resolve_metrics
from unisono.model.losses import Reading, resolve_loss
from unisono.model.losses.base import LOGARITHMS, LOGITS, NUMBERS, PROBABILITIES

N, C = 120, 4
RANDOM = torch.Generator().manual_seed(7)
SCORES = 2 * torch.randn(N, C, generator=RANDOM, dtype=torch.float64)
LABELS = torch.where(torch.rand(N, generator=RANDOM) < 0.7, SCORES.argmax(1), torch.randint(0, C, (N,), generator=RANDOM))
BITS = (torch.rand(N, generator=RANDOM) < torch.sigmoid(SCORES[:, 0])).long()
MANY = (torch.rand(N, C, generator=RANDOM) < 0.4).long()
SOFTMAX, SIGMOID = SCORES.softmax(1), SCORES.sigmoid()
ONE_HOT = functional.one_hot(LABELS, C)

DECIDING: tuple[tuple[str, Callable[..., float]], ...] = (
    ("accuracy", sk.accuracy_score),
    ("kappa", sk.cohen_kappa_score),
    ("balanced_accuracy", sk.balanced_accuracy_score),
    ("f1_macro", partial(sk.f1_score, average="macro")),
    ("mean_iou", partial(sk.jaccard_score, average="macro")),
)


def value(name: str, reading: Reading, outputs: Tensor, targets: Tensor) -> float:
    (metric,) = resolve_metrics([name], reading)
    data = metric.rows if isinstance(metric, GatheredMetric) else metric.sums
    return metric.value(data(outputs, targets).numpy())


def same(found: float, expected: float) -> None:
    assert found == pytest.approx(float(expected), rel=1e-10)


@pytest.mark.parametrize(("name", "reference"), DECIDING)
def test_probabilities_are_decided_at_one_half_and_logits_at_zero(name: str, reference: Callable[..., float]) -> None:
    expected = reference(BITS, SIGMOID[:, 0] > 0.5)
    for reading, outputs in ((Reading(predicts=PROBABILITIES), SIGMOID), (Reading(predicts=LOGITS), SCORES)):
        same(value(name, reading, outputs[:, 0], BITS), expected)
        same(value(name, reading, outputs[:, :1], BITS[:, None].float()), expected)
    if name in ("f1_macro", "accuracy"):
        several = Reading(predicts=PROBABILITIES, one_hot=False)
        decided = (SIGMOID > 0.5).long()
        expected = sk.f1_score(MANY, decided, average="macro") if name == "f1_macro" else float((decided == MANY).double().mean())
        same(value(name, several, SIGMOID, MANY), expected)


@pytest.mark.parametrize("predicts", [LOGITS, PROBABILITIES, None])
@pytest.mark.parametrize(("name", "reference"), DECIDING)
def test_the_largest_output_decides_for_a_class(name: str, reference: Callable[..., float], predicts: str | None) -> None:
    """Whatever it is, so this needs no knowledge of the outputs."""
    expected = reference(LABELS, SCORES.argmax(1))
    for outputs in (SCORES, SOFTMAX):
        same(value(name, Reading(predicts=predicts), outputs, LABELS), expected)
        same(value(name, Reading(predicts=predicts, one_hot=True), outputs, ONE_HOT.float()), expected)


@pytest.mark.parametrize("name", ["auc", "average_precision"])
def test_areas_of_probabilities_take_no_second_softmax(name: str) -> None:
    area = sk.roc_auc_score if name == "auc" else sk.average_precision_score
    expected = np.mean([area(k == LABELS, SOFTMAX[:, k]) for k in range(C)])
    for reading, outputs in (
        (Reading(predicts=PROBABILITIES, one_hot=True), SOFTMAX),
        (Reading(predicts=LOGITS, one_hot=True), SCORES),
    ):
        same(value(name, reading, outputs, LABELS), expected)
        same(value(name, reading, outputs, ONE_HOT), expected)
    two = torch.stack((1 - SIGMOID[:, 0], SIGMOID[:, 0]), dim=1)
    for kind in (PROBABILITIES, None):
        same(value(name, Reading(predicts=kind), two, BITS), area(BITS, SIGMOID[:, 0]))
        same(value(name, Reading(predicts=kind), SIGMOID[:, 0], BITS), area(BITS, SIGMOID[:, 0]))
    numbers = Reading(predicts=NUMBERS, one_hot=False)
    same(value(name, numbers, SCORES, ONE_HOT), np.mean([area(k == LABELS, SCORES[:, k]) for k in range(C)]))


@pytest.mark.parametrize("places", [(5, 6), (C, C)])
def test_the_class_may_be_the_last_axis(places: tuple[int, int]) -> None:
    """As in Keras; also where other axes are as long as the classes are many."""
    draw = torch.Generator().manual_seed(3)
    maps = torch.randn(6, *places, C, generator=draw, dtype=torch.float64)
    truth = torch.randint(0, C, (6, *places), generator=draw)
    bits = (torch.rand(6, *places, 1, generator=draw) < 0.4).long()
    reading = Reading(predicts=LOGITS, one_hot=True, channels_last=True)
    expected = sk.jaccard_score(truth.flatten(), maps.argmax(-1).flatten(), average="macro")
    for targets in (truth, truth[..., None], functional.one_hot(truth, C)):
        same(value("mean_iou", reading, maps, targets), expected)
        same(value("top_1_accuracy", reading, maps, targets), float((maps.argmax(-1) == truth).double().mean()))
        rows = maps.softmax(-1).reshape(-1, C)
        areas = [sk.roc_auc_score(truth.flatten() == k, rows[:, k]) for k in range(C)]
        same(value("auc", reading, maps, targets), float(np.mean(areas)))
    labels = Reading(predicts=PROBABILITIES, one_hot=False, channels_last=True)
    chances = maps[..., :1].sigmoid()
    for outputs, targets in ((chances, bits), (chances, bits[..., 0])):
        same(value("f1", labels, outputs, targets), sk.f1_score(bits.flatten(), (chances > 0.5).flatten()))
    many = (maps > 0.3).long()
    expected = sk.f1_score(many.reshape(-1, C), (maps > 0).reshape(-1, C), average="macro")
    same(value("f1", Reading(predicts=LOGITS, one_hot=False, channels_last=True), maps, many), expected)


UNKNOWN = resolve_loss(lambda outputs, targets: (outputs - targets) ** 2).reading


def test_what_is_not_known_of_outputs_is_refused() -> None:
    for name in ("accuracy", "f1", "kappa"):
        with pytest.raises(UsageError, match=f"'{name}' decides by the border.*the loss '<lambda>' does not say which"):
            value(name, UNKNOWN, SIGMOID[:, 0], BITS)
        with pytest.raises(UsageError, match=rf"'{name}': targets of the shape of the outputs, \(120, 4\), are either one-hot"):
            value(name, UNKNOWN, SOFTMAX, ONE_HOT)
    with pytest.raises(UsageError, match="'auc': targets of the shape of the outputs"):
        value("auc", UNKNOWN, SOFTMAX, ONE_HOT)
    with pytest.raises(UsageError, match="'auc' orders samples by the probability of each class, but the loss '<lambda>' does not"):
        value("auc", UNKNOWN, SOFTMAX, LABELS)
    same(value("mse", UNKNOWN, SOFTMAX, ONE_HOT), sk.mean_squared_error(ONE_HOT, SOFTMAX))


def test_an_own_loss_says_what_its_outputs_and_targets_are() -> None:
    def own(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().sum(1)

    own.predicts, own.one_hot = "probabilities", True  # type: ignore[attr-defined]
    reading = resolve_loss(own).reading
    assert (reading.predicts, reading.one_hot) == (PROBABILITIES, True)
    same(value("f1", reading, SOFTMAX, ONE_HOT), sk.f1_score(LABELS, SCORES.argmax(1), average="macro"))
    for attribute, wrong, told in (
        ("predicts", "logit", "logit.*of the attribute `predicts` of the loss 'own'.*logits"),
        ("one_hot", "yes", "the attribute `one_hot` of the loss 'own' must be True or False"),
    ):
        setattr(own, attribute, wrong)
        with pytest.raises(UsageError, match=told):
            _ = resolve_loss(own).reading
        delattr(own, attribute)


@pytest.mark.parametrize(
    ("loss", "predicts", "one_hot"),
    [
        ("cross_entropy", LOGITS, True),
        ("nll", LOGITS, False),
        ("bce", LOGITS, False),
        ("mse", NUMBERS, False),
        (nn.BCELoss(reduction="none"), PROBABILITIES, False),
        (nn.CrossEntropyLoss(reduction="none"), LOGITS, True),
        (partial(functional.binary_cross_entropy, reduction="none"), PROBABILITIES, False),
        (partial(functional.cross_entropy, reduction="none"), LOGITS, True),
        (partial(functional.mse_loss, reduction="none"), NUMBERS, False),
        (nn.PoissonNLLLoss(reduction="none"), LOGARITHMS, False),
        (nn.PoissonNLLLoss(log_input=False, reduction="none"), NUMBERS, False),
        (partial(functional.poisson_nll_loss, reduction="none"), LOGARITHMS, False),
        (partial(functional.poisson_nll_loss, reduction="none", log_input=False), NUMBERS, False),
        (nn.TripletMarginLoss(reduction="none"), None, None),
    ],
)
def test_how_losses_of_torch_read_outputs(loss: Any, predicts: str | None, one_hot: bool | None) -> None:
    found = resolve_loss(loss).reading
    assert (found.predicts, found.one_hot) == (predicts, one_hot)


@pytest.mark.parametrize("function", [functional.cross_entropy, functional.nll_loss])
def test_the_label_that_a_partial_ignores_counts_in_no_metric(function: Any) -> None:
    counted = LABELS != 2
    reading = resolve_loss(partial(partial(function, ignore_index=2), reduction="none")).reading
    for name, reference in (("accuracy", sk.accuracy_score), ("f1_macro", partial(sk.f1_score, average="macro", labels=range(C)))):
        same(value(name, reading, SCORES, LABELS), reference(LABELS[counted], SCORES.argmax(1)[counted]))
    assert resolve_loss(partial(function, reduction="none")).reading.ignore_label is None, "targets may be one-hot"
