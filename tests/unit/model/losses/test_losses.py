"""Losses: sum / weight is torch's mean, however the samples are divided, and what cannot be exact is refused."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unisono.errors import UsageError
from unisono.model.losses import Loss, resolve_loss
from unisono.model.losses.find_loss import LOSSES
from unisono.model.torch.body import LossBody

N, C = 13, 5
RANDOM = torch.Generator().manual_seed(3)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=RANDOM, dtype=torch.float64)


LOGITS, MAPS = normal(N, C), normal(4, C, 3, 2)
LABELS = torch.randint(0, C, (N,), generator=RANDOM)
MAP_LABELS = torch.randint(0, C, (4, 3, 2), generator=RANDOM)
SHARES = torch.softmax(normal(N, C), 1)
MAP_SHARES = torch.softmax(normal(4, C, 3, 2), 1)
VALUES, BITS = normal(N, C), (normal(N, C) > 0).double()
CLASS_WEIGHTS = [0.5, 2.0, 0.0, 1.0, 3.0]
SOME_IGNORED = torch.where(torch.arange(N) % 3 == 0, 255, LABELS)
MAP_IGNORED = torch.where(MAP_LABELS == 1, -1, MAP_LABELS)
TENSOR = torch.tensor(CLASS_WEIGHTS, dtype=torch.float64)
SAMPLE_WEIGHTS = torch.rand(N, generator=RANDOM, dtype=torch.float64) + 0.1

Case = tuple[str, Mapping[str, Any], Tensor, Tensor, Callable[..., Tensor], Mapping[str, Any]]
CE, NLL = F.cross_entropy, F.nll_loss
CASES: tuple[Case, ...] = (
    ("cross_entropy", {}, LOGITS, LABELS, CE, {}),
    ("cross_entropy", {"label_smoothing": 0.1}, LOGITS, LABELS, CE, {"label_smoothing": 0.1}),
    ("cross_entropy", {"class_weights": CLASS_WEIGHTS}, LOGITS, LABELS, CE, {"weight": TENSOR}),
    ("cross_entropy", {"ignore_label": 255}, LOGITS, SOME_IGNORED, CE, {"ignore_index": 255}),
    (
        "cross_entropy",
        {"ignore_label": 255, "class_weights": CLASS_WEIGHTS, "label_smoothing": 0.2},
        LOGITS,
        SOME_IGNORED,
        CE,
        {"ignore_index": 255, "weight": TENSOR, "label_smoothing": 0.2},
    ),
    ("cross_entropy", {}, MAPS, MAP_LABELS, CE, {}),
    (
        "cross_entropy",
        {"ignore_label": -1, "class_weights": CLASS_WEIGHTS},
        MAPS,
        MAP_IGNORED,
        CE,
        {"ignore_index": -1, "weight": TENSOR},
    ),
    ("cross_entropy", {}, LOGITS, SHARES, CE, {}),
    (
        "cross_entropy",
        {"class_weights": CLASS_WEIGHTS, "label_smoothing": 0.1},
        MAPS,
        MAP_SHARES,
        CE,
        {"weight": TENSOR, "label_smoothing": 0.1},
    ),
    ("nll", {}, LOGITS.log_softmax(1), LABELS, NLL, {}),
    (
        "nll",
        {"class_weights": CLASS_WEIGHTS, "ignore_label": -1},
        MAPS.log_softmax(1),
        MAP_IGNORED,
        NLL,
        {"weight": TENSOR, "ignore_index": -1},
    ),
    ("bce", {}, LOGITS, BITS, F.binary_cross_entropy_with_logits, {}),
    ("bce", {"pos_weight": 3.0}, LOGITS, BITS, F.binary_cross_entropy_with_logits, {"pos_weight": torch.tensor(3.0)}),
    ("bce", {"pos_weight": CLASS_WEIGHTS}, LOGITS, BITS, F.binary_cross_entropy_with_logits, {"pos_weight": TENSOR}),
    ("mse", {}, LOGITS, VALUES, F.mse_loss, {}),
    ("mae", {}, LOGITS, VALUES, F.l1_loss, {}),
    ("huber", {"delta": 0.3}, LOGITS, VALUES, F.huber_loss, {"delta": 0.3}),
    ("smooth_l1", {"beta": 0.3}, LOGITS, VALUES, F.smooth_l1_loss, {"beta": 0.3}),
    ("poisson_nll", {}, LOGITS, VALUES.abs(), F.poisson_nll_loss, {}),
    (
        "poisson_nll",
        {"log_input": False, "full": True},
        LOGITS.abs(),
        VALUES.abs() + 2,
        F.poisson_nll_loss,
        {"log_input": False, "full": True},
    ),
)


def mean(loss: Loss, outputs: Any, targets: Any, weights: Tensor | None = None, parts: int = 1) -> float:
    """As the workers do it: sums over sums of weights."""
    sums = [0.0, 0.0]
    for part in range(parts):
        cut = slice(len(outputs) * part // parts, len(outputs) * (part + 1) // parts)
        summed, weight = loss(outputs[cut], targets[cut], None if weights is None else weights[cut])
        assert summed.dim() == 0
        sums[0] += float(summed)
        sums[1] += float(weight)
    return sums[0] / sums[1]


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(("name", "options", "outputs", "targets", "function", "arguments"), CASES)
def test_the_quotient_is_the_mean_of_torch(
    name: str,
    options: Mapping[str, Any],
    outputs: Tensor,
    targets: Tensor,
    function: Callable[..., Tensor],
    arguments: Mapping[str, Any],
    parts: int,
) -> None:
    expected = float(function(outputs, targets, **arguments))
    assert mean(resolve_loss(name, options), outputs, targets, parts=parts) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("name", "options", "outputs", "targets"), [case[:4] for case in CASES])
def test_a_sample_of_weight_two_is_a_sample_given_twice(
    name: str, options: Mapping[str, Any], outputs: Tensor, targets: Tensor
) -> None:
    loss = resolve_loss(name, options)
    times = torch.arange(len(outputs)) % 3  # weight 0 leaves a sample out
    repeated = mean(loss, outputs.repeat_interleave(times, 0), targets.repeat_interleave(times, 0))
    assert mean(loss, outputs, targets, times.double(), parts=2) == pytest.approx(repeated, rel=1e-12)


@pytest.mark.parametrize(("name", "options", "outputs", "targets", "function", "arguments"), CASES)
def test_gradients_are_those_of_torch(
    name: str,
    options: Mapping[str, Any],
    outputs: Tensor,
    targets: Tensor,
    function: Callable[..., Tensor],
    arguments: Mapping[str, Any],
) -> None:
    ours, theirs = outputs.clone().requires_grad_(), outputs.clone().requires_grad_()
    summed, weight = resolve_loss(name, options)(ours, targets)
    (summed / weight).backward()  # type: ignore[no-untyped-call]
    function(theirs, targets, **arguments).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-15)


def test_a_weight_that_shapes_say_is_a_plain_float() -> None:
    for name, targets in (("cross_entropy", LABELS), ("nll", LABELS), ("mse", VALUES), ("bce", BITS), ("focal", LABELS)):
        weight = resolve_loss(name, {})(LOGITS, targets)[1]
        assert type(weight) is float and weight == targets.numel()


# ---- dice and focal ------------------------------------------------------------------------------------------------------


def test_dice_of_each_sample() -> None:
    summed, weight = resolve_loss("dice", {"smooth": 0.0})(MAPS, MAP_LABELS)
    expected = 0.0
    for logits, labels in zip(MAPS, MAP_LABELS, strict=True):
        shares = logits.softmax(0)
        scores = [2 * shares[k][labels == k].sum() / (shares[k].sum() + (labels == k).sum()) for k in range(C)]
        expected += 1 - float(sum(scores)) / C
    assert weight == 4.0
    assert float(summed) == pytest.approx(expected, rel=1e-12)


def test_dice_of_one_class_takes_masks_with_and_without_the_axis() -> None:
    mask = (MAP_LABELS > 1).to(torch.uint8)
    loss = resolve_loss("dice", {})
    assert float(loss(MAPS[:, :1], mask)[0]) == float(loss(MAPS[:, :1], mask[:, None].double())[0])
    right = torch.where(mask[:, None] > 0, 50.0, -50.0)
    assert float(loss(right, mask)[0]) == pytest.approx(0, abs=1e-6)


def test_dice_does_not_see_ignored_places() -> None:
    loss = resolve_loss("dice", {"ignore_label": -1})
    changed = torch.where(MAP_IGNORED[:, None] == -1, MAPS + 7 * normal(*MAPS.shape), MAPS)
    assert float(loss(MAPS, MAP_IGNORED)[0]) == pytest.approx(float(loss(changed, MAP_IGNORED)[0]), rel=1e-12)
    assert float(loss(MAPS, MAP_IGNORED)[0]) != pytest.approx(float(loss(-MAPS, MAP_IGNORED)[0]), rel=1e-3)


def test_focal_without_gamma_is_cross_entropy_and_with_it_is_its_formula() -> None:
    options = {"class_weights": CLASS_WEIGHTS, "ignore_label": -1}
    plain, reference = resolve_loss("focal", {"gamma": 0.0, **options}), resolve_loss("cross_entropy", options)
    assert mean(plain, MAPS, MAP_IGNORED) == pytest.approx(mean(reference, MAPS, MAP_IGNORED), rel=1e-12)
    right = LOGITS.softmax(1)[torch.arange(N), LABELS]
    expected = float((-((1 - right) ** 2) * right.log()).mean())
    assert mean(resolve_loss("focal", {}), LOGITS, LABELS) == pytest.approx(expected, rel=1e-12)


# ---- types and shapes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_labels_of_any_integer_type(dtype: torch.dtype) -> None:
    assert float(resolve_loss("cross_entropy", {})(LOGITS, LABELS.to(dtype))[0]) == float(CE(LOGITS, LABELS, reduction="sum"))


def test_one_hot_labels_are_probabilities() -> None:
    rows = F.one_hot(LABELS, C)
    for targets in (rows, rows.to(torch.uint8), rows.bool(), rows.float()):
        assert mean(resolve_loss("cross_entropy", {}), LOGITS, targets) == pytest.approx(float(CE(LOGITS, LABELS)), rel=1e-12)


def test_targets_are_cast_to_the_outputs_and_halves_are_summed_as_float32() -> None:
    summed, _ = resolve_loss("mse", {})(LOGITS.float(), VALUES)
    assert summed.dtype == torch.float32
    many = torch.full((4096, 1), 1.0, dtype=torch.bfloat16)
    assert float(resolve_loss("mse", {})(many, torch.zeros(4096))[0]) == 4096
    assert resolve_loss("cross_entropy", {})(LOGITS.bfloat16(), LABELS)[0].dtype == torch.float32


def test_a_single_output_goes_with_flat_targets_but_nothing_is_broadcast() -> None:
    loss = resolve_loss("mse", {})
    assert float(loss(VALUES[:, :1], VALUES[:, 0])[0]) == 0
    with pytest.raises(UsageError, match=r"'mse': targets of shape \(13, 5\) do not fit outputs of shape \(13, 1\)"):
        loss(VALUES[:, :1], VALUES)


def test_an_empty_batch_has_sum_and_weight_zero() -> None:
    for name in LOSSES:
        targets = LABELS if name in ("cross_entropy", "nll", "focal", "dice") else VALUES
        for weights in (None, SAMPLE_WEIGHTS[:0]):
            summed, weight = resolve_loss(name, {})(LOGITS[:0], targets[:0], weights)
            assert (float(summed), float(weight)) == (0.0, 0.0), name


def test_a_label_is_not_ignored_unasked() -> None:
    with pytest.raises(IndexError):
        resolve_loss("cross_entropy", {})(LOGITS, torch.full((N,), -100))


@pytest.mark.parametrize(
    ("outputs", "targets", "message"),
    [
        (LOGITS, LABELS[:, None], r"targets of shape \(13, 1\) do not fit outputs of shape \(13, 5\)"),
        (LOGITS, LABELS[:5], r"targets of shape \(5,\) do not fit"),
        (MAPS, MAP_LABELS[:, :2], r"targets of shape \(4, 2, 2\) do not fit"),
        (LOGITS, LABELS.float(), "targets are float32, but class numbers are needed"),
        ({"a": LOGITS}, LABELS, "needs one tensor of outputs, received dict; use a function"),
    ],
)
def test_targets_that_do_not_fit(outputs: Any, targets: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve_loss("cross_entropy", {})(outputs, targets)


def test_sample_weights_that_do_not_fit() -> None:
    with pytest.raises(UsageError, match=r"give one weight for each sample: shape \(13,\)"):
        resolve_loss("mse", {})(LOGITS, VALUES, torch.ones(N, 1))


# ---- a user's own --------------------------------------------------------------------------------------------------------


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().sum(1)


def test_a_function_of_samples() -> None:
    loss = resolve_loss(squares, {})
    assert loss(LOGITS, VALUES)[1] == float(N)
    assert mean(loss, LOGITS, VALUES, parts=3) == pytest.approx(float(squares(LOGITS, VALUES).mean()), rel=1e-12)
    expected = (squares(LOGITS, VALUES) * SAMPLE_WEIGHTS).sum() / SAMPLE_WEIGHTS.sum()
    assert mean(loss, LOGITS, VALUES, SAMPLE_WEIGHTS, parts=3) == pytest.approx(float(expected), rel=1e-12)


def test_a_function_of_elements() -> None:
    loss = resolve_loss(lambda outputs, targets: (outputs - targets).square(), {})
    assert mean(loss, LOGITS, VALUES, SAMPLE_WEIGHTS) == pytest.approx(
        mean(resolve_loss("mse", {}), LOGITS, VALUES, SAMPLE_WEIGHTS), rel=1e-12
    )


def test_a_function_that_takes_the_weights() -> None:
    def weighted(outputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
        losses = squares(outputs, targets)
        return losses if weights is None else losses * weights

    for weights in (None, SAMPLE_WEIGHTS):
        expected = mean(resolve_loss(squares, {}), LOGITS, VALUES, weights)
        assert mean(resolve_loss(weighted, {}), LOGITS, VALUES, weights) == pytest.approx(expected, rel=1e-12)


def test_a_function_that_gives_sum_and_weight_of_nested_outputs() -> None:
    def pair(outputs: Mapping[str, Tensor], targets: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
        return squares(outputs["a"], targets[0]).sum() + squares(outputs["b"], targets[1]).sum(), 2 * len(targets[0])

    summed, weight = resolve_loss(pair, {})({"a": LOGITS, "b": LOGITS}, (VALUES, VALUES))
    assert weight == 2.0 * N
    assert float(summed) == pytest.approx(2 * float(squares(LOGITS, VALUES).sum()))
    with pytest.raises(UsageError, match="third parameter called weights"):
        resolve_loss(pair, {})({"a": LOGITS, "b": LOGITS}, (VALUES, VALUES), SAMPLE_WEIGHTS)


def test_modules_that_do_not_reduce() -> None:
    assert mean(resolve_loss(nn.MSELoss(reduction="none"), {}), LOGITS, VALUES) == pytest.approx(float(F.mse_loss(LOGITS, VALUES)))
    for module, outputs in (
        (nn.CrossEntropyLoss(weight=TENSOR, ignore_index=255, label_smoothing=0.1, reduction="none"), LOGITS),
        (nn.NLLLoss(weight=TENSOR, ignore_index=255, reduction="none"), LOGITS.log_softmax(1)),
    ):
        loss = resolve_loss(module, {})
        module.reduction = "mean"
        assert mean(loss, outputs, SOME_IGNORED, parts=3) == pytest.approx(float(module(outputs, SOME_IGNORED)), rel=1e-12)


@pytest.mark.parametrize(
    "function",
    [nn.CrossEntropyLoss(), nn.MSELoss(reduction="sum"), nn.KLDivLoss(reduction="batchmean"), F.cross_entropy, F.mse_loss],
    ids=str,
)
def test_a_reduction_is_refused_before_work_starts(function: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match=r'reduces its losses to one number .* \(reduction="none"\) or the pair'):
        resolve_loss(function, {})


def test_torch_functions_that_do_not_reduce() -> None:
    loss = resolve_loss(functools.partial(F.mse_loss, reduction="none"), {})
    assert mean(loss, LOGITS, VALUES) == pytest.approx(float(F.mse_loss(LOGITS, VALUES)))


def test_one_number_is_refused() -> None:
    with pytest.raises(UsageError, match=r"loss 'own' returned one number .* return one loss for each sample"):

        def own(outputs: Tensor, targets: Tensor) -> Tensor:
            return (outputs - targets).mean()

        resolve_loss(own, {})(LOGITS, VALUES)


@pytest.mark.parametrize("result", [(1.0, 2.0), (LOGITS, 1.0), (LOGITS.sum(), 1.0, 2.0), 3.0])
def test_other_results_are_refused(result: Any) -> None:
    with pytest.raises(UsageError):
        resolve_loss(lambda *_: result, {})(LOGITS, VALUES)


def test_a_loss_with_parameters_is_refused() -> None:
    with pytest.raises(UsageError, match="trainable parameters, which belong in the model"):
        resolve_loss(nn.Linear(2, 2), {})


@pytest.mark.parametrize("which", ["train", "evaluate"])
def test_a_label_without_a_class_is_one_message_in_training_and_evaluation(which: str) -> None:
    body = LossBody(resolve_loss("cross_entropy", {}))
    batch = (LOGITS, LABELS + C)
    with pytest.raises(UsageError, match=r"cannot use the targets of a batch: Target \d+ is out of bounds.*labels must lie in"):
        body(nn.Identity(), batch, 0) if which == "train" else body.evaluate(nn.Identity(), batch)


# ---- names and options ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "options", "message"),
    [
        ("cross_entropi", {}, "unknown loss 'cross_entropi'; did you mean 'cross_entropy'"),
        (
            "cross_entropy",
            {"label_smothing": 0.1},
            "unknown option 'label_smothing' of loss cross_entropy; did you mean 'label_smoothing'",
        ),
        ("mse", {"delta": 1}, "unknown option 'delta' of loss mse; known: none"),
        ("cross_entropy", {"label_smoothing": 2}, r"label_smoothing must lie in 0\.\.1"),
        ("cross_entropy", {"label_smoothing": "much"}, "options of loss 'cross_entropy' .* do not fit"),
        ("cross_entropy", {"class_weights": [-1.0, 1.0]}, "class_weights must be one number of at least 0"),
        ("cross_entropy", {"ignore_label": "void"}, r"options of loss 'cross_entropy' \(\{'ignore_label': 'void'\}\) do not fit"),
        ("huber", {"delta": 0}, "delta must be above 0"),
        ("smooth_l1", {"beta": -1}, "beta must be above 0"),
        ("focal", {"gamma": -1}, "gamma must be at least 0"),
        ("dice", {"smooth": -1}, "smooth must be at least 0"),
        ("bce", {"pos_weight": -1.0}, "pos_weight must be one number"),
        (squares, {"delta": 1}, "need a loss by name, but this one is a function"),
        (3, {}, "must be a name or a function"),
    ],
)
def test_what_is_refused(loss: Any, options: Mapping[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve_loss(loss, options)


def test_options_that_do_not_fit_the_outputs() -> None:
    with pytest.raises(UsageError, match="class_weights has 2 values for 5 classes"):
        resolve_loss("cross_entropy", {"class_weights": [1, 2]})(LOGITS, LABELS)
    with pytest.raises(UsageError, match="pos_weight has 2 values for outputs of shape"):
        resolve_loss("bce", {"pos_weight": [1, 2]})(LOGITS, BITS)
    with pytest.raises(UsageError, match="ignore_label needs targets that are class numbers"):
        resolve_loss("cross_entropy", {"ignore_label": 0})(LOGITS, SHARES)


@pytest.mark.parametrize(("shape", "num_samples"), [((10,), 32), ((3, 5), 4), ((5,), 2)])
def test_values_that_are_not_as_many_for_each_sample_are_refused(shape: tuple[int, ...], num_samples: int) -> None:
    def own(*_: Tensor) -> Tensor:
        return torch.ones(shape)

    with pytest.raises(UsageError, match=rf"values of shape .* for {num_samples} samples, from loss 'own': means of single work"):
        resolve_loss(own)(torch.zeros(num_samples, 10), torch.zeros(num_samples, 10))
    for good in ((2, 3), (6,), (3, 2)):
        loss = resolve_loss(lambda outputs, _, good=good: outputs.reshape(good))
        assert loss(torch.zeros(2, 3), {"a": torch.zeros(2)})[1] == 6
    assert resolve_loss(lambda outputs, _: outputs.sum(1))(torch.zeros(0, 3), torch.zeros(0))[1] == 0
