"""Recorded evaluations give every bit of evaluations that run as they are, with a stand-in for the recordings of a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unisono as un
from unisono.comm.single_process import single_process_communicator
from unisono.errors import UsageError
from unisono.metrics import GatheredMetric, Metric, resolve_metrics
from unisono.model.losses import resolve_loss
from unisono.model.torch.adapter import TorchAdapter, trainable
from unisono.model.torch.body import LossBody
from unisono.model.torch.recorder import PlainRecorder
from unisono.training.captured_evaluation import MOST_SIZES, CapturedEvaluation
from unisono.training.evaluation import EvaluationPlan, Shards, evaluate
from unisono.training.frontends import assemble

NUM_VALIDATION, BATCH = 150, 64  # two whole batches, and a shorter one
RESIDENT, STREAMED, ARRAYS = "resident", "streamed", "arrays"
"""Where batches come from: the device, the host to be made on the device, or arrays of the host."""
RANDOM = np.random.default_rng(0)
INPUTS = RANDOM.normal(size=(350, 6)).astype(np.float32)
CLASSES = (INPUTS[:, 0] > 0).astype(np.int64) + (INPUTS[:, 1] > 0)
WEIGHTS = RANDOM.random(350).astype(np.float32)


class Counts(PlainRecorder):
    """Counts the repetitions of recorded evaluations."""

    def __init__(self) -> None:
        self.repetitions = 0

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        def repeat() -> None:
            self.repetitions += CapturedEvaluation.__name__ in work.__qualname__
            work()

        return repeat


class Refuses(PlainRecorder):
    """Records nothing."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:  # noqa: ARG002
        raise RuntimeError("this machine records nothing")


def mean_distance(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.softmax(1) - nn.functional.one_hot(targets, 3)).abs().sum(1)


def in_order(outputs: Any, targets: Any) -> float:
    return float((outputs[:, 0].astype(np.float64) * np.arange(len(outputs))).sum() + targets.sum())


in_order.gathered = True  # type: ignore[attr-defined]


def network(num_outputs: int = 3) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, num_outputs))


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = network(4)()

    def forward(self, inputs: Tensor) -> dict[str, Any]:
        found = self.inner(inputs)
        return {"classes": found[:, :3], "others": (found[:, 3], found.sum(1))}


def loss_of_two(outputs: Any, targets: Any) -> Any:
    return nn.functional.cross_entropy(outputs["classes"], targets, reduction="none") + outputs["others"][0].square()


def accuracy_of_two(outputs: Any, targets: Any) -> Any:
    return outputs["classes"].argmax(1) == targets


def data(*arrays: Any) -> Callable[[], un.Splits]:
    train, validation, test = (
        un.Arrays(*(part[where] for part in arrays)) for where in (slice(150), slice(150, 300), slice(300, None))
    )
    return lambda: un.Splits(train, validation, test)


def ignoring() -> tuple[np.ndarray, np.ndarray]:
    return INPUTS, np.where(np.arange(350) % 7 == 0, -100, CLASSES)


CASES: dict[str, dict[str, Any]] = {
    "classes": {
        "metrics": ("accuracy", "top_2_accuracy", "f1", "f1_weighted", "kappa", "auc", "average_precision", mean_distance, in_order)
    },
    "weights": {"data": data(INPUTS, CLASSES, WEIGHTS), "metrics": ("accuracy", "f1", "auc")},
    "ignored label": {
        "data": data(*ignoring()),
        "loss_options": {"ignore_label": -100},
        "metrics": ("accuracy", "f1", "mean_iou", "auc"),
    },
    "class weights": {"loss_options": {"class_weights": [1, 2, 0.3]}, "metrics": ("accuracy",)},
    "numbers": {
        "model": network(2),
        "data": data(INPUTS, INPUTS[:, :2] ** 2),
        "loss": "mse",
        "metrics": ("mse", "rmse", "mae", "r2"),
    },
    "two classes": {
        "model": network(1),
        "data": data(INPUTS, (CLASSES > 0).astype(np.int64)),
        "loss": "bce",
        "metrics": ("accuracy", "f1", "precision_binary", "auc"),
    },
    "labels": {
        "data": data(INPUTS, (INPUTS[:, :3] > 0).astype(np.int64)),
        "loss": "bce",
        "metrics": ("accuracy", "f1_macro", "auc"),
    },
    "several outputs": {"model": TwoOutputs, "loss": loss_of_two, "metrics": (accuracy_of_two,)},
    "no metrics": {},
    "bf16": {"metrics": ("accuracy", "auc"), "precision": "bf16"},
}


@pytest.fixture
def found_by(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def train(recorder: PlainRecorder | None, where: str, options: dict[str, Any], **more: Any) -> dict[str, Any]:
        monkeypatch.setattr(assemble, "recorder_for", lambda *_: recorder)
        monkeypatch.setattr(assemble, "makes_batches_on", lambda *_: where != ARRAYS)
        given = {"model": network(), "data": data(INPUTS, CLASSES), "loss": "cross_entropy", **options}
        task = un.Task(optimizer="sgd", optimizer_options={"fused": True}, lr=0.1, global_batch=32, epochs=3, **given)
        out = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        summary = un.train(task, out=out, show=False, resident="off" if where == STREAMED else "auto", **more).summary
        return {**summary["metrics"], "weights": summary["weights_sha256"]}

    return train


@pytest.mark.parametrize("where", [RESIDENT, STREAMED, ARRAYS])
@pytest.mark.parametrize("case", CASES)
def test_bits_are_those_of_evaluations_as_they_are(case: str, where: str, found_by: Any) -> None:
    recorder = Counts()
    found = found_by(recorder, where, CASES[case])
    expected = found_by(Refuses(), where, CASES[case])
    assert repr(found) == repr(expected)
    if case != "bf16":  # which CPUs without it compute otherwise, as single operations
        assert repr(found) == repr(found_by(None, ARRAYS, CASES[case]))
    assert recorder.repetitions > 0 and "test_loss" in found


def test_values_that_are_no_numbers(found_by: Any) -> None:
    inputs = np.where(np.arange(350)[:, None] == 200, np.nan, INPUTS).astype(np.float32)  # in the second batch of three
    options = {"data": data(inputs, CLASSES), "metrics": ("accuracy", "f1", "auc", mean_distance)}
    recorder = Counts()
    found = found_by(recorder, RESIDENT, options, on_nan="skip")
    assert found["val_loss"] is found["val_mean_distance"] is None and found["val_accuracy"] > 0
    assert repr(found) == repr(found_by(Refuses(), RESIDENT, options, on_nan="skip")) and recorder.repetitions > 0


# ---- one replica --------------------------------------------------------------------------------------------------------


class Replica:
    """A replica with two data sets, evaluated as recorded work and as it is."""

    def __init__(self, model: nn.Module, metrics: tuple[Metric, ...] = (), classes: np.ndarray = CLASSES) -> None:
        self.recorder = Counts()
        parts = {"": trainable(model)}
        self.body = LossBody(resolve_loss("cross_entropy"))
        self.adapter = TorchAdapter(model, self.body, parts, torch.device("cpu"), lambda n, dtype: torch.empty(n, dtype=dtype))
        self.metrics = metrics or resolve_metrics(("accuracy", "f1"))
        self.source = un.Arrays(INPUTS[:NUM_VALIDATION], classes[:NUM_VALIDATION])
        self.captured = CapturedEvaluation(self.adapter, self.recorder, self.metrics)

    def evaluate(
        self, is_captured: bool = True, stop: Callable[[], bool] | None = None, batch: int = BATCH, shards: int | None = None
    ) -> Any:
        plan = EvaluationPlan(
            self.metrics,
            batch,
            stop_requested=stop or (lambda: False),
            shards=None if shards is None else Shards(shards, range(shards), lambda _: None),
            captured=self.captured if is_captured else None,
        )
        torch.manual_seed(3)
        with single_process_communicator() as comm:
            return evaluate(comm, self.adapter, self.source, plan, "val_")

    def agrees(self, **given: Any) -> bool:
        return repr(self.evaluate(**given)) == repr(self.evaluate(is_captured=False, **given))

    def change_weights(self) -> None:
        with torch.no_grad():
            for parameter in self.adapter.model.parameters():
                parameter.add_(torch.randn(parameter.shape))


def test_recordings_serve_later_evaluations() -> None:
    replica = Replica(network()())
    for number in range(4):
        assert replica.agrees()
        assert replica.recorder.repetitions == 1 + 3 * number  # only the first batch of each size runs as it is
        replica.change_weights()
    assert not replica.captured.reason


def test_a_stop_leaves_nothing_for_the_next_evaluation() -> None:
    replica = Replica(network()())
    assert replica.agrees()
    stops = iter([False, True])
    assert replica.evaluate(stop=lambda: next(stops)) is None
    assert replica.agrees() and not replica.captured.reason


def test_sums_of_shards_are_added_apart() -> None:
    replica = Replica(network()(), resolve_metrics(("accuracy", "f1", "auc", mean_distance)))
    for _ in range(3):
        assert replica.agrees(batch=20, shards=4)
    assert not replica.captured.reason and replica.recorder.repetitions


def test_more_sizes_than_are_recorded() -> None:
    replica = Replica(network()())
    for _ in range(3):
        for batch in range(20, 20 + MOST_SIZES):
            assert replica.agrees(batch=batch)
    assert not replica.captured.reason and replica.recorder.repetitions


class Scaled(nn.Module):
    """Multiplies its outputs by a plain number."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()()
        self.factor = 1.0

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.inner(inputs)
        return found * self.factor


def test_a_model_with_another_attribute_is_not_repeated() -> None:
    model = Scaled()
    replica = Replica(model)
    assert replica.agrees()
    model.factor = -2.0
    assert replica.agrees()
    assert "changes factor" in replica.captured.reason


def test_a_model_whose_tensors_have_moved_is_not_repeated() -> None:
    model = nn.Linear(6, 3)
    replica = Replica(model)
    assert replica.agrees()
    model.weight.data = model.weight.data.clone() + 1
    assert replica.agrees()
    assert "weight lies elsewhere" in replica.captured.reason


class AlwaysDrops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = network()()

    def forward(self, inputs: Tensor) -> Tensor:
        return nn.functional.dropout(self.inner(inputs), 0.3)


def test_a_model_that_draws_on_the_host_is_not_repeated() -> None:
    replica = Replica(AlwaysDrops())
    assert replica.agrees()
    assert "generator of torch on the host" in replica.captured.reason and not replica.recorder.repetitions


class SameMemory(nn.Module):
    """Returns its outputs in the same memory each time, as recorded work does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3, dtype=torch.float64)
        self.held = torch.empty(BATCH, 3, dtype=torch.float64)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.held.copy_(self.inner(inputs))


class KeepsOutputs(GatheredMetric):
    """Its rows are the outputs themselves."""

    name = "mean_output"

    def rows(self, outputs: Any, targets: Any, weights: Tensor | None = None) -> Tensor:  # noqa: ARG002
        assert isinstance(outputs, Tensor)
        return outputs

    def value(self, sums: Any) -> float:
        return float(sums.mean())


def test_outputs_are_copied_before_the_next_repetition() -> None:
    model = SameMemory()
    replica = Replica(model, (KeepsOutputs(),))
    replica.source = un.Arrays(INPUTS[: 2 * BATCH], CLASSES[: 2 * BATCH])
    replica.evaluate()
    found = replica.evaluate()
    with torch.no_grad():
        expected = model.inner(torch.from_numpy(INPUTS[: 2 * BATCH]).double()).mean()
    assert found["val_mean_output"] == pytest.approx(float(expected), rel=1e-12)
    assert replica.recorder.repetitions == 3


class OwnDict(dict[str, Tensor]):
    """Outputs with attributes, as those of large libraries."""

    @property
    def logits(self) -> Tensor:
        return self["logits"]


class Both(NamedTuple):
    logits: Tensor
    all: list[Tensor]


class Wrapped(nn.Module):
    def __init__(self, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)
        self.wrap = wrap

    def forward(self, inputs: Tensor) -> Any:
        return self.wrap(self.inner(inputs))


def right_logits(outputs: Any, targets: Any) -> Any:
    return outputs.logits.argmax(1) == targets


@pytest.mark.parametrize(
    ("wrap", "reason"), [(lambda found: OwnDict(logits=found), "not tensors in dicts"), (lambda found: Both(found, [found]), "")]
)
def test_outputs_keep_their_type_for_metrics_of_users(wrap: Callable[[Tensor], Any], reason: str) -> None:
    replica = Replica(Wrapped(wrap), resolve_metrics((right_logits,)))
    replica.body.loss = None
    for _ in range(3):
        assert replica.agrees()
    assert reason in replica.captured.reason and bool(replica.captured.reason) == bool(reason)


def test_wrong_labels_are_refused_when_the_value_is_read() -> None:
    classes = CLASSES.copy()
    classes[70] = 3
    replica = Replica(nn.Linear(6, 3), resolve_metrics(("f1_macro",)), classes)
    replica.body.loss = None
    with pytest.raises(UsageError, match=r"some targets are not in 0\.\.2 but the model has 3 classes"):
        replica.evaluate()
    assert replica.recorder.repetitions == 1


def test_code_on_the_host_says_why() -> None:
    replica = Replica(network()())
    replica.body.host_code = "it logs"
    replica.captured = CapturedEvaluation(replica.adapter, replica.recorder, replica.metrics)
    assert replica.agrees() and replica.agrees()
    assert replica.captured.reason == "it logs" and not replica.recorder.repetitions


def test_what_cannot_be_recorded_says_why() -> None:
    replica = Replica(network()())
    replica.captured = CapturedEvaluation(replica.adapter, Refuses(), replica.metrics)
    assert replica.agrees() and replica.agrees()
    assert replica.captured.reason.startswith("this machine records nothing")
    assert replica.adapter.notes == [f"evaluations are not recorded as a CUDA graph: {replica.captured.reason}"]
