"""Metrics: equal to scikit-learn's on one batch, for each kind of outputs, with weights and ignored labels."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from torch import Tensor

from unisono.errors import UsageError
from unisono.metrics import GatheredMetric, Metric, resolve_metrics
from unisono.metrics.counts import QUOTIENTS, ClassQuotient
from unisono.metrics.find_metrics import OF_LOGITS
from unisono.task.averages import OF_OUTPUTS, UNNAMED, Averages, recorded_averages

N, C = 101, 5
RANDOM = torch.Generator().manual_seed(5)
LOGITS = torch.randn(N, C, generator=RANDOM, dtype=torch.float64).round(decimals=1)
LABELS = torch.where(torch.rand(N, generator=RANDOM) < 0.5, LOGITS.argmax(1), torch.randint(0, C - 1, (N,), generator=RANDOM))
BITS = (torch.rand(N, C, generator=RANDOM) < 0.4).long()
WEIGHTS = torch.rand(N, generator=RANDOM, dtype=torch.float64)
VALUES = torch.randn(N, C, generator=RANDOM, dtype=torch.float64) + 3
PREDICTED, SHARES = LOGITS.argmax(1).numpy(), LOGITS.softmax(1).numpy()
LOGIT, BIT = LOGITS[:, 0], BITS[:, 0]
DECIDED = (LOGIT > 0).numpy()


def one(metric: str | Callable[..., Any], averages: Averages = OF_OUTPUTS, **reading: Any) -> Metric:
    return resolve_metrics([metric], replace(OF_LOGITS, **reading), averages)[0]


def value(metric: Metric, outputs: Any, targets: Any, weights: Tensor | None = None) -> float:
    data = metric.rows if isinstance(metric, GatheredMetric) else metric.sums
    return metric.value(data(outputs, targets, weights).numpy())


def same(found: float, expected: float) -> None:
    assert found == pytest.approx(float(expected), rel=1e-10, abs=1e-12)


FAMILIES: tuple[tuple[str, Callable[..., float]], ...] = (
    ("precision", sk.precision_score),
    ("recall", sk.recall_score),
    ("f1", sk.f1_score),
    ("dice", sk.f1_score),
    ("iou", sk.jaccard_score),
)
PLAIN: tuple[tuple[str, Callable[..., float]], ...] = (
    ("accuracy", sk.accuracy_score),
    ("balanced_accuracy", sk.balanced_accuracy_score),
    ("kappa", sk.cohen_kappa_score),
)


# ---- classes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize(("name", "reference"), PLAIN)
def test_plain_metrics_of_classes(name: str, reference: Callable[..., float], weights: Tensor | None) -> None:
    same(value(one(name), LOGITS, LABELS, weights), reference(LABELS, PREDICTED, sample_weight=weights))
    same(value(one(name), LOGIT, BIT, weights), reference(BIT, DECIDED, sample_weight=weights))
    same(value(one(name), LOGIT[:, None], BIT, weights), reference(BIT, DECIDED, sample_weight=weights))


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("average", ["macro", "micro", "weighted"])
@pytest.mark.parametrize(("name", "reference"), FAMILIES)
def test_averages(name: str, reference: Callable[..., float], average: str, weights: Tensor | None) -> None:
    metric = one(f"{name}_{average}")
    given = {"average": average, "sample_weight": weights, "zero_division": 0}
    same(value(metric, LOGITS, LABELS, weights), reference(LABELS, PREDICTED, **given))
    same(value(metric, LOGITS, BITS, weights), reference(BITS, LOGITS > 0, **given))
    same(value(metric, LOGIT, BIT, weights), reference(BIT, DECIDED, **given))


@pytest.mark.parametrize(("name", "reference"), FAMILIES)
def test_binary_and_default_average(name: str, reference: Callable[..., float]) -> None:
    same(value(one(f"{name}_binary"), LOGIT, BIT), reference(BIT, DECIDED))
    same(value(one(name), LOGITS, LABELS), reference(LABELS, PREDICTED, average="macro", zero_division=0))
    with pytest.raises(UsageError, match=f"'{name}_binary' needs two classes, but there are 5; use '{name}'"):
        value(one(f"{name}_binary"), LOGITS, LABELS)


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize(("name", "reference"), FAMILIES)
def test_one_output_is_measured_by_the_positive_class(name: str, reference: Callable[..., float], weights: Tensor | None) -> None:
    expected = reference(BIT, DECIDED, sample_weight=weights)
    for outputs, targets in ((LOGIT, BIT), (LOGIT[:, None], BIT), (LOGIT[:, None], BIT[:, None]), (LOGIT, BIT.double())):
        same(value(one(name), outputs, targets, weights), expected)
        same(value(one(f"{name}_binary"), outputs, targets, weights), expected)
    two = torch.stack((-LOGIT, LOGIT), dim=1)
    same(value(one(name), two, BIT, weights), reference(BIT, DECIDED, average="macro", sample_weight=weights))
    same(value(one(f"{name}_binary"), two, BIT, weights), expected)


@pytest.mark.parametrize("name", [name for name, _ in FAMILIES])
def test_a_positive_class_that_is_not_found_gives_zero(name: str) -> None:
    """Not one half, which the negative class would add."""
    mask = torch.zeros(2, 1, 8, 8)
    mask[0, 0, 0, 0] = 1
    for metric in (name, f"{name}_binary"):
        assert value(one(metric), torch.full((2, 1, 8, 8), -1.0), mask) == 0
        assert value(one(metric), torch.where(mask == 1, -1.0, 1.0), mask * 0) == 0, "found where there is none"
        assert math.isnan(value(one(metric), torch.full((2, 1, 8, 8), -1.0), mask * 0)), "there is nothing to be measured"


def test_a_run_that_began_earlier_keeps_its_averages() -> None:
    before = recorded_averages({})
    assert set(before) == set(QUOTIENTS) == set(UNNAMED)
    for name, reference in FAMILIES:
        for kept, average in ((before, "macro"), ({name: "binary"}, "binary")):
            metric = one(name, averages=kept)
            assert isinstance(metric, ClassQuotient)
            sums = metric.sums(LOGIT, BIT)
            assert metric.average_of(sums) == average
            same(metric.value(sums.numpy()), reference(BIT, DECIDED, average=average))
    for name, outputs, targets, average in (("f1", LOGIT, BIT, "binary"), ("f1", LOGITS, LABELS, "macro")):
        metric = one(name)
        assert isinstance(metric, ClassQuotient)
        assert metric.average_of(metric.sums(outputs, targets)) == average


def test_mean_iou_is_the_mean_over_classes() -> None:
    same(value(one("mean_iou"), LOGITS, LABELS), sk.jaccard_score(LABELS, PREDICTED, average="macro"))


def test_a_class_that_does_not_occur_is_left_out_of_means() -> None:
    few = torch.cat((LOGITS[:, :3], torch.full((N, 2), -9.0)), dim=1)
    truth = LABELS.clamp(max=2)
    same(value(one("f1"), few, truth), sk.f1_score(truth, few.argmax(1), average="macro"))


@pytest.mark.parametrize("num_samples", [1, 2, 4])
def test_averages_of_very_few_samples(num_samples: int) -> None:
    truth, predicted = LABELS[:num_samples], PREDICTED[:num_samples]
    for name, reference in FAMILIES:
        expected = reference(truth, predicted, average="macro", zero_division=0)
        same(value(one(name), LOGITS[:num_samples], truth), expected)


@pytest.mark.parametrize("k", [1, 3, 4])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_top_accuracy(k: int, weights: Tensor | None) -> None:
    scores = LOGITS + torch.arange(C) * 1e-4  # without ties
    expected = sk.top_k_accuracy_score(LABELS, scores, k=k, sample_weight=weights, labels=range(C))
    same(value(one(f"top_{k}_accuracy"), scores, LABELS, weights), expected)


def test_accuracy_of_labels_that_hold_together_is_over_elements() -> None:
    same(value(one("accuracy"), LOGITS, BITS), ((LOGITS > 0) == BITS).double().mean().item())


def test_one_hot_targets_are_classes_if_the_loss_says_so() -> None:
    rows = torch.nn.functional.one_hot(LABELS, C).to(torch.uint8)
    for name in ("accuracy", "kappa", "f1", "top_2_accuracy", "auc"):
        same(value(one(name, one_hot=True), LOGITS, rows, WEIGHTS), value(one(name), LOGITS, LABELS, WEIGHTS))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_labels_of_any_integer_type(dtype: torch.dtype) -> None:
    for name in ("accuracy", "f1", "top_2_accuracy", "auc"):
        assert value(one(name), LOGITS.float(), LABELS.to(dtype)) == value(one(name), LOGITS.float(), LABELS)


# ---- maps and ignored labels ---------------------------------------------------------------------------------------------


MAPS = torch.randn(4, 3, 5, 7, generator=RANDOM)
VOID = torch.randint(0, 4, (4, 5, 7), generator=RANDOM).to(torch.uint8)
KEPT = (VOID != 3).numpy()
TRUE_PIXELS, PIXELS = VOID.numpy()[KEPT], MAPS.argmax(1).numpy()[KEPT]
PIXEL_WEIGHTS = np.broadcast_to(WEIGHTS[:4].numpy()[:, None, None], VOID.shape)[KEPT]


@pytest.mark.parametrize("weighted", [False, True])
def test_maps_with_an_ignored_label(weighted: bool) -> None:
    weights, pixels = (WEIGHTS[:4], PIXEL_WEIGHTS) if weighted else (None, None)
    for name, reference in PLAIN:
        expected = reference(TRUE_PIXELS, PIXELS, sample_weight=pixels)
        same(value(one(name, ignore_label=3), MAPS, VOID, weights), expected)
    expected = sk.jaccard_score(TRUE_PIXELS, PIXELS, average="macro", sample_weight=pixels)
    same(value(one("mean_iou", ignore_label=3), MAPS, VOID, weights), expected)
    scores = MAPS.double().softmax(1).movedim(1, -1).numpy()[KEPT]
    expected = np.mean([sk.roc_auc_score(np.equal(TRUE_PIXELS, k), scores[:, k], sample_weight=pixels) for k in range(3)])
    same(value(one("auc", ignore_label=3), MAPS, VOID, weights), expected)
    expected = sk.top_k_accuracy_score(TRUE_PIXELS, scores, k=2, sample_weight=pixels)
    same(value(one("top_2_accuracy", ignore_label=3), MAPS, VOID, weights), expected)


def test_binary_maps_with_an_ignored_label() -> None:
    mask = torch.randint(0, 3, (4, 5, 7), generator=RANDOM) * 127  # 0, 127, 254
    truth = torch.where(mask == 127, 1, mask)
    kept = (truth != 254).numpy()
    decided, scores = (MAPS[:, 0] > 0).numpy()[kept], MAPS[:, 0].numpy()[kept]
    for targets in (truth, truth[:, None]):
        same(value(one("accuracy", ignore_label=254), MAPS[:, :1], targets), sk.accuracy_score(truth.numpy()[kept], decided))
        same(value(one("dice_binary", ignore_label=254), MAPS[:, :1], targets), sk.f1_score(truth.numpy()[kept], decided))
        same(value(one("auc", ignore_label=254), MAPS[:, :1], targets), sk.roc_auc_score(truth.numpy()[kept], scores))


def test_labels_that_hold_together_with_unknown_ones() -> None:
    unknown = torch.where(torch.rand(N, C, generator=RANDOM) < 0.2, -1, BITS)
    areas, scores = [], []
    for k in range(C):
        kept = unknown[:, k] != -1
        areas.append(sk.roc_auc_score(unknown[kept, k], LOGITS[kept, k], sample_weight=WEIGHTS[kept]))
        scores.append(sk.f1_score(unknown[kept, k], LOGITS[kept, k] > 0, sample_weight=WEIGHTS[kept]))
    same(value(one("auc", ignore_label=-1), LOGITS, unknown, WEIGHTS), float(np.mean(areas)))
    same(value(one("f1", ignore_label=-1), LOGITS, unknown, WEIGHTS), float(np.mean(scores)))


# ---- scores --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize(("name", "reference"), [("auc", sk.roc_auc_score), ("average_precision", sk.average_precision_score)])
def test_areas_with_ties(name: str, reference: Callable[..., float], weights: Tensor | None) -> None:
    assert len(set(LOGIT.tolist())) < N
    same(value(one(name), LOGIT, BIT, weights), reference(BIT, LOGIT, sample_weight=weights))
    same(value(one(name), LOGIT[:, None], BIT, weights), reference(BIT, LOGIT, sample_weight=weights))
    pair = torch.stack((torch.zeros(N), LOGIT), dim=1)
    same(value(one(name), pair, BIT, weights), reference(BIT, LOGIT, sample_weight=weights))
    same(value(one(name), LOGITS, BITS, weights), reference(BITS, LOGITS, average="macro", sample_weight=weights))
    truth = torch.cat((LABELS[:-2], torch.tensor([C - 1, C - 1])))
    each = [reference(truth == k, SHARES[:, k], sample_weight=weights) for k in range(C)]
    same(value(one(name), LOGITS, truth, weights), float(np.mean(each)))


def test_area_of_several_classes_is_that_of_one_against_the_rest() -> None:
    truth = torch.cat((torch.arange(C), LABELS[C:]))
    same(value(one("auc"), LOGITS, truth), sk.roc_auc_score(truth, SHARES, multi_class="ovr"))


def test_areas_that_do_not_exist() -> None:
    assert math.isnan(value(one("auc"), LOGIT, torch.ones(N)))
    assert math.isnan(value(one("average_precision"), LOGIT, torch.zeros(N)))
    assert math.isnan(value(one("auc"), torch.where(BIT == 1, torch.nan, LOGIT), BIT))


def test_scores_beyond_the_range_of_probabilities_keep_their_order() -> None:
    assert value(one("auc"), torch.tensor([[0.0, 800.0], [0.0, 900.0], [0.0, 1000.0]]), torch.tensor([0, 0, 1])) == 1.0


# ---- numbers -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize(
    ("name", "reference"), [("mse", sk.mean_squared_error), ("mae", sk.mean_absolute_error), ("r2", sk.r2_score)]
)
def test_errors(name: str, reference: Callable[..., float], weights: Tensor | None) -> None:
    same(value(one(name), LOGITS, VALUES, weights), reference(VALUES, LOGITS, sample_weight=weights))
    same(value(one(name), LOGITS[:, :1], VALUES[:, 0], weights), reference(VALUES[:, 0], LOGITS[:, 0], sample_weight=weights))


def test_root_of_the_mean_squared_error() -> None:
    same(value(one("rmse"), LOGITS[:, 0], VALUES[:, 0]), sk.root_mean_squared_error(VALUES[:, 0], LOGITS[:, 0]))


def test_errors_are_summed_in_float64() -> None:
    many = torch.full((10_000_001,), 1.0)
    assert value(one("mae"), many, torch.zeros(1).expand_as(many)) == 1.0


@pytest.mark.parametrize("error", [0.0, 1.0])
def test_determination_of_constant_targets(error: float) -> None:
    constant = torch.full((10,), 0.1, dtype=torch.float64)
    same(value(one("r2"), constant + error, constant), sk.r2_score(constant, constant + error))


# ---- a user's own --------------------------------------------------------------------------------------------------------


def distance(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).abs().sum(1)


def test_a_function_of_samples_is_averaged() -> None:
    metric = one(distance)
    assert (metric.name, metric.higher_is_better, metric.num_sums) == ("distance", None, 2)
    each = distance(LOGITS, VALUES)
    same(value(metric, LOGITS, VALUES), float(each.mean()))
    same(value(metric, LOGITS, VALUES, WEIGHTS), float((each * WEIGHTS).sum() / WEIGHTS.sum()))


def test_a_function_that_gives_sum_and_weight() -> None:
    def rate(outputs: dict[str, Tensor], targets: Tensor) -> tuple[Tensor, int]:
        return outputs["a"].sum(), 2 * len(targets)

    rate.higher_is_better = False  # type: ignore[attr-defined]
    metric = one(rate)
    assert metric.higher_is_better is False
    same(value(metric, {"a": LOGITS}, LABELS), float(LOGITS.sum() / (2 * N)))
    with pytest.raises(UsageError, match="third parameter called weights"):
        metric.sums({"a": LOGITS}, LABELS, WEIGHTS)


def test_a_function_that_takes_the_weights() -> None:
    def rate(outputs: Tensor, targets: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor | int]:
        return (outputs[:, 0].sum(), len(targets)) if weights is None else ((outputs[:, 0] * weights).sum(), weights.sum())

    same(value(one(rate), LOGITS, LABELS, WEIGHTS), float(np.average(LOGITS[:, 0], weights=WEIGHTS)))
    same(value(one(rate), LOGITS, LABELS), float(LOGITS[:, 0].mean()))


def test_a_gathered_function_sees_arrays_as_the_model_gave_them() -> None:
    seen = []

    def spread(outputs: Any, targets: Any) -> float:
        seen.append((outputs, targets))
        return float(outputs["a"].std())

    spread.gathered = True  # type: ignore[attr-defined]
    metric = one(spread)
    assert metric.num_sums is None
    outputs = {"a": MAPS, "b": (WEIGHTS[:4].float(),)}
    same(value(metric, outputs, VOID), float(MAPS.numpy().std()))
    ((given, truth),) = seen
    np.testing.assert_array_equal(given["a"], MAPS.numpy())
    np.testing.assert_array_equal(given["b"][0], WEIGHTS[:4].float().numpy())
    np.testing.assert_array_equal(truth, VOID.numpy())
    assert (given["a"].dtype, truth.dtype) == (np.float32, np.uint8)
    with pytest.raises(UsageError, match="does not take; add a parameter called weights"):
        value(metric, outputs, VOID, WEIGHTS[:4])


def test_a_gathered_function_with_weights() -> None:
    def spread(outputs: Any, targets: Any, weights: Any) -> float:
        return float(np.average(outputs, weights=weights))

    spread.gathered = True  # type: ignore[attr-defined]
    same(value(one(spread), LOGIT, BIT, WEIGHTS), float(np.average(LOGIT, weights=WEIGHTS)))
    same(value(one(spread), LOGIT, BIT), float(LOGIT.mean()))


@pytest.mark.parametrize("result", [1.0, torch.tensor(1.0), np.float64(1.0)])
def test_one_number_is_refused(result: Any) -> None:
    def own(outputs: Tensor, targets: Tensor) -> Any:
        return result

    with pytest.raises(UsageError, match=r"metric 'own' returned one number, .* return one value for each sample or the pair"):
        one(own).sums(LOGITS, LABELS)


def test_metrics_build_no_graph() -> None:
    outputs = LOGITS.clone().requires_grad_()
    for name in ("accuracy", "mse", distance):
        assert not one(name).sums(outputs, VALUES).requires_grad


# ---- what is refused -----------------------------------------------------------------------------------------------------


def test_metrics_without_samples_are_not_a_number() -> None:
    for name in ("accuracy", "top_2_accuracy", "f1", "f1_micro", "f1_binary", "mean_iou", "balanced_accuracy", "kappa", "auc"):
        width = 2 if name == "f1_binary" else C
        assert math.isnan(value(one(name), LOGITS[:0, :width], LABELS[:0])), name
        assert math.isnan(value(one(name, ignore_label=9), LOGITS[:3, :width], torch.full((3,), 9))), name
    for name in ("mse", "rmse", "mae", "r2"):
        assert math.isnan(value(one(name), LOGITS[:0], VALUES[:0])), name


def loss(outputs: Tensor, _: Tensor) -> Tensor:
    """A metric with a name that is taken."""
    return outputs


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["acuracy"], "unknown metric 'acuracy'; did you mean 'accuracy'"),
        (["f1_makro"], "did you mean 'f1_macro'"),
        (["top_0_accuracy"], "unknown metric 'top_0_accuracy'; did you mean 'top_5_accuracy'"),
        (["auc", "auc"], "two metrics are called 'auc'"),
        ([loss], "a metric is called 'loss' .*another name"),
        ([lambda outputs, _: outputs], "the metric .*lambda.* has no name; define it with def"),
        ([3], "must be a name or a function"),
    ],
)
def test_what_is_refused(names: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve_metrics(names)


@pytest.mark.parametrize(
    ("name", "outputs", "targets", "message"),
    [
        ("f1", LOGITS, LABELS + 2, "targets go from 2 to 6 but the model has 5 classes; number the classes from 0"),
        ("kappa", LOGITS, BITS, "needs one class for each sample"),
        ("f1_binary", LOGITS[:, :2], BITS[:, :2], "needs one class for each sample"),
        ("top_6_accuracy", LOGITS, LABELS, "needs one class for each sample and at least 6 classes"),
        ("accuracy", LOGITS, BITS[:, :2], r"targets of shape \(101, 2\) do not fit outputs of shape \(101, 5\)"),
        ("accuracy", {"a": LOGITS}, LABELS, "needs one tensor of outputs, received dict"),
        ("mse", LOGITS, VALUES[:, :1], "give one target for each output"),
        ("mse", LOGITS, VALUES[:, 0], "give one target for each output"),
    ],
)
def test_outputs_that_do_not_fit(name: str, outputs: Any, targets: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        one(name).sums(outputs, targets)
