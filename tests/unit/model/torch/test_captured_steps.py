"""Recorded steps are bit for bit those that run as they are, wherever batches are made; or the reason is said."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR

import unisono as un
from tests.unit.model.torch.tape import RefusingRecorder, TapeRecorder
from tests.unit.training.device_path import (
    BATCH,
    HOST,
    LABELS,
    NUM,
    PICTURES,
    RESIDENT,
    SIDE,
    STREAMED,
    Train,
    expect_same,
    pictures,
    task_of,
    train_with,
)
from tests.unit.training.odd_models import (
    BAD,
    Breaks,
    Counter,
    Drawing,
    DrawingNumPy,
    Growing,
    Means,
    Replaced,
    Unused,
    Waiting,
    crop,
    marked,
    plain,
    with_first,
)
from unisono.metrics.base import Metric
from unisono.metrics.hits import Accuracy
from unisono.model.base import StreamKey
from unisono.model.tail import LATEST
from unisono.model.torch.body import LossBody
from unisono.model.torch.captured_steps import MOST_SIZES
from unisono.model.torch.recorder import PlainRecorder, Recorder
from unisono.training.frontends import assemble
from unisono.training.run_hooks import RunHooks

STEPS = 15
KEY = StreamKey(0, 0, 0)
MOMENTUM = {"optimizer_options": {"momentum": 0.9}}


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Train:
    return train_with(monkeypatch)


def weighted() -> un.Splits:
    whole = un.Arrays(PICTURES, LABELS, np.linspace(0.2, 3.0, NUM + 10)).map_inputs(un.Scale(1 / 64))
    return un.Splits(whole.subset(np.arange(NUM)), validation=whole.subset(np.arange(NUM, NUM + 10)))


def unvalidated() -> un.Splits:
    """Without evaluations, which are recorded too."""
    return un.Splits(pictures().train)


def one_cycle(optimizer: torch.optim.Optimizer) -> Any:
    return OneCycleLR(optimizer, max_lr=0.1, total_steps=STEPS)


CASES: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": "sgd"},
    "momentum": {"optimizer": "sgd", **MOMENTUM},
    "adam": {"optimizer": "adam", "lr": 0.01},
    "adamw amsgrad": {"optimizer": "adamw", "lr": 0.01, "optimizer_options": {"amsgrad": True}},
    "one batch": {"global_batch": NUM, "epochs": 6},
    "accumulate": {"accumulate": 3, **MOMENTUM},
    "clip": {"clip_norm": 0.1, **MOMENTUM},
    "clip and accumulate": {"clip_norm": 0.1, "accumulate": 2, "optimizer": "adam"},
    "cosine": {"schedule": "cosine", "optimizer": "adam"},
    "one cycle": {"schedule": one_cycle, **MOMENTUM},
    "sample weights": {"data": weighted},
    "class weights": {"loss_options": {"class_weights": [1.0, 2.0, 0.5, 1.5]}},
    "several metrics": {"metrics": ("accuracy", "top_2_accuracy")},
    "shards": {"shards": 3, **MOMENTUM},
    "augment": {"augment": un.augment.Chain(un.augment.Flip(axis=-1), un.augment.Shift(1))},
    "augment on the host": {"augment": lambda batch, draws: (batch[0] * draws.uniform(0.5, 1.5, (1, 1, 1)), batch[1])},
}


@pytest.mark.parametrize("name", CASES)
def test_recorded_steps_are_those_that_run_as_they_are(train: Train, name: str) -> None:
    """With dropout, batch-norm, and a short batch at the end of each epoch."""
    case = CASES[name]
    expected = train(task_of(**case), RefusingRecorder(), HOST)
    assert "this machine records nothing" in expected.captured.reason
    for data in (HOST, STREAMED, RESIDENT):
        tape = TapeRecorder()
        for recorder in (tape, PlainRecorder()):
            found = train(task_of(**case), recorder, data)
            assert found.captured.reason == "" and not found.said
            expect_same(found, expected)
        assert tape.num_recorded and tape.num_repeated >= 3


@pytest.mark.parametrize("case", [{}, MOMENTUM, {"accumulate": 3}, {"shards": 3}, {"clip_norm": 0.1}])
def test_sgd_is_that_of_the_host(train: Train, case: dict[str, Any]) -> None:
    """Updates on the device have the bits of those that wait for each step; the rates of Adam have fewer digits there."""
    expect_same(train(task_of(**case), TapeRecorder(), RESIDENT), train(task_of(**case)))


def test_rates_of_other_optimizers_are_those_of_the_host_up_to_their_digits(train: Train) -> None:
    found, expected = (train(task_of(optimizer="adam", epochs=1), one) for one in (TapeRecorder(), None))
    for name, tensor in expected.weights.items():
        torch.testing.assert_close(found.weights[name], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("optimizer", ["rmsprop", "adadelta"])
def test_gradients_are_recorded_where_the_host_makes_the_update(train: Train, optimizer: str) -> None:
    task, tape = task_of(data=unvalidated, optimizer=optimizer, optimizer_options={"fused": None}), TapeRecorder()
    found = train(task, tape, RESIDENT)
    assert tape.num_recorded == 2, "the gradient, for each size"
    expect_same(found, train(task, RefusingRecorder()))


def test_one_recording_holds_a_whole_step(train: Train) -> None:
    tape = TapeRecorder()
    train(task_of(data=unvalidated), tape)
    assert (tape.num_recorded, tape.num_repeated) == (2, 10 + 1), "two of each size run as they are"


def test_accumulated_gradients_have_a_recording_each(train: Train) -> None:
    tape = TapeRecorder()
    train(task_of(data=unvalidated, accumulate=2, epochs=4), tape)
    assert tape.num_recorded == 5, "the first and the later micro-batch of two sizes, and the update"


def test_local_steps_are_recorded(train: Train) -> None:
    tape = TapeRecorder()
    found, expected = (
        train(task_of(data=unvalidated, **MOMENTUM), one, algorithm="local_sgd") for one in (tape, RefusingRecorder())
    )
    assert tape.num_recorded == 2
    expect_same(found, expected)


# ---- what runs as it is ------------------------------------------------------------------------------------------------


ODD: Sequence[tuple[Callable[[], nn.Module], str]] = [
    (Counter, "it changes 0.calls, which is not a tensor in place"),
    (Growing, "it changes 0.means"),
    (Replaced, "it changes 0.seen"),
    (Drawing, "it draws from the generator of Python on the host"),
    (DrawingNumPy, "it draws from the generator of NumPy on the host"),
    (Waiting, "waits for the device"),
    (Unused, "a batch did not use 0.spare.weight, 0.spare.bias, and whether one does is decided on the host"),
]


@pytest.mark.parametrize(("make", "reason"), ODD)
@pytest.mark.parametrize("case", [{}, {"accumulate": 2, "optimizer": "adam"}])
def test_a_model_that_cannot_be_recorded_runs_as_it_is(
    train: Train, make: Callable[[], nn.Module], reason: str, case: dict[str, Any]
) -> None:
    """The same numbers, and one line that says why."""

    def run(recorder: Recorder) -> Any:
        random.seed(1)
        np.random.seed(1)
        return train(with_first(make, **case), recorder, RESIDENT)

    found = run(TapeRecorder())
    (said,) = (text for text in found.said if text.startswith("steps are not recorded as a CUDA graph, so each takes longer: "))
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(said)
    expect_same(found, run(RefusingRecorder()))


def test_a_model_that_changes_later_runs_as_it_is(train: Train) -> None:
    """A layer that the second epoch's short batches leave out: recorded steps of the others are not repeated any more."""

    class Choosing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.spare = nn.Linear(SIDE, SIDE)

        def forward(self, inputs: Tensor) -> Tensor:
            outputs: Tensor = self.spare(inputs) if len(inputs) == BATCH else inputs
            return outputs

    found, expected = (train(with_first(Choosing), one) for one in (TapeRecorder(), RefusingRecorder()))
    assert "did not use 0.spare.weight" in found.captured.reason
    expect_same(found, expected)


class CountingLoss:
    """A loss with a state of its own."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.calls += 1
        return nn.functional.cross_entropy(outputs, targets, reduction="none") * self.calls


def test_a_loss_with_a_state_runs_as_it_is(train: Train) -> None:
    found, expected = (train(task_of(loss=CountingLoss()), one) for one in (TapeRecorder(), RefusingRecorder()))
    assert "it changes the loss CountingLoss.calls" in found.captured.reason
    expect_same(found, expected)


def test_a_weight_that_the_host_changes_is_seen(train: Train) -> None:
    """It is not a function of the shapes, so it must not be written once for all."""
    numbers = iter(range(10**6))

    def loss(outputs: Tensor, targets: Tensor) -> tuple[Tensor, float]:
        return nn.functional.cross_entropy(outputs, targets, reduction="sum"), 10.0 + next(numbers) % 3

    found = train(task_of(loss=loss, epochs=2), TapeRecorder())
    assert "the host computes the weight of the loss" in found.captured.reason
    assert found.progress.num_skipped == 0


@pytest.mark.parametrize("case", [{}, {"accumulate": 2, "optimizer": "adam"}])
def test_many_shapes_are_not_recorded(train: Train, case: dict[str, Any]) -> None:
    """Recordings of the first shapes are not used any more either, as each keeps memory of its own."""
    task = task_of(model=Means, augment=crop, global_batch=5, epochs=6, **case)
    tape = TapeRecorder()
    for data in (HOST, STREAMED):
        found = train(task, tape, data)
        assert found.captured.reason == f"batches have more than {MOST_SIZES} shapes"
        expect_same(found, train(task, RefusingRecorder()))
    assert tape.num_repeated


def test_a_recorder_that_fails_late_loses_nothing(train: Train) -> None:
    """The second recording fails: that of the first is not used any more either."""

    class Second(TapeRecorder):
        def record(self, work: Callable[[], None]) -> Callable[[], None]:
            if self.num_recorded:
                super().record(work)
                raise RuntimeError("CUDA error: out of luck\nmore lines")
            return super().record(work)

    for case in ({}, {"accumulate": 2}, {"optimizer": "adam", "clip_norm": 0.1}):
        found = train(task_of(**case), Second(), RESIDENT)
        assert found.captured.reason.startswith("CUDA error: out of luck (")
        expect_same(found, train(task_of(**case), RefusingRecorder()))


def gan_step(self: Any, batch: Any) -> None:
    inputs, targets = batch
    losses = nn.functional.cross_entropy(self.model(inputs), targets, reduction="none")
    self.minimise(losses, "front")
    self.minimise(nn.functional.cross_entropy(self.model(inputs), targets, reduction="none"), "back")


def test_a_step_of_the_task_runs_as_it_is(train: Train) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.front, self.back = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 5)), nn.Linear(5, 4)

        def forward(self, inputs: Tensor) -> Tensor:
            outputs: Tensor = self.back(self.front(inputs))
            return outputs

    fused = ("sgd", {"fused": True})
    task = task_of(
        model=Two, step=gan_step, optimizer={"front": fused, "back": fused}, optimizer_options={"fused": None}, metrics=()
    )
    found, expected = train(task, TapeRecorder()), train(task)
    assert found.captured.reason == "the task has a step of its own"
    expect_same(found, expected)


def test_a_body_that_computes_on_the_host_runs_as_it_is(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a LightningModule and a Keras model do."""
    expected = train(task_of())
    monkeypatch.setattr(LossBody, "host_code", "it logs on the host")
    found = train(task_of(), TapeRecorder(), RESIDENT)
    assert found.captured.reason == "it logs on the host" and len(found.said) == 1
    expect_same(found, expected)


# ---- sums that come late -----------------------------------------------------------------------------------------------


def bad_step(found: Any) -> int:
    plan = found.parts.loader.plan
    (step,) = (step for step in range(plan.steps_per_epoch) if BAD in plan.order(0)[plan.batch(step)])
    return int(step)


@pytest.mark.parametrize("case", [{}, {"optimizer": "adam"}, {"accumulate": 2, **MOMENTUM}, {"clip_norm": 0.5}, {"shards": 3}])
@pytest.mark.parametrize("data", [HOST, RESIDENT])
def test_an_update_that_is_not_finite_is_left_out(train: Train, case: dict[str, Any], data: str) -> None:
    """With the numbers of a training that waits for each step: buffers are put back."""
    task = with_first(Breaks, data=marked, **case)
    found = train(task, TapeRecorder(), data, on_nan="skip")
    assert found.captured.reason == ""
    assert found.progress.num_skipped == task.epochs
    assert all(f"sample {BAD}" in text for text in found.said) and len(found.said) == task.epochs
    expect_same(found, train(task, RefusingRecorder(), on_nan="skip"))
    if "optimizer" not in case:
        expect_same(found, train(task, on_nan="skip"))


@pytest.mark.parametrize("case", [{}, {"optimizer": "adam"}, {"accumulate": 2, **MOMENTUM}, {"clip_norm": 0.5}, {"shards": 3}])
@pytest.mark.parametrize("seed", range(4))
def test_a_training_ends_with_the_weights_before_the_bad_step(train: Train, case: dict[str, Any], seed: int) -> None:
    """Though the host hears of it some steps later: no update follows, and the message is that of the step."""
    task = task_of(model=plain, data=marked, global_batch=5, seed=seed, **case)
    found = train(task, TapeRecorder(), RESIDENT)
    step = bad_step(found)
    assert found.progress.reason == "not finite"
    assert f"step {step} is not finite (nan): on rank 0 sample {BAD};" in found.progress.failure
    assert found.progress.num_skipped == 1 and step < found.progress.step <= step + LATEST
    before = train(task, RefusingRecorder(), max_steps=step) if step else None
    for name, tensor in found.parts.adapter.model.named_parameters():
        assert bool(tensor.isfinite().all())
        assert before is None or torch.equal(tensor, before.weights[name]), name


@pytest.mark.parametrize("kind", ["sgd", "sgd with momentum", "adam"])
def test_a_first_step_that_is_left_out_leaves_nothing(train: Train, kind: str) -> None:
    """Also where the optimiser has its parameters one by one: torch makes the momentum in the first step."""

    def optimizer(parameters: Any, lr: float) -> torch.optim.Optimizer:
        first, *others = parameters
        groups = [{"params": [first]}, {"params": others}]
        if kind == "adam":
            return torch.optim.Adam(groups, lr=lr, fused=True)
        return torch.optim.SGD(groups, lr=lr, momentum=0.9 if "momentum" in kind else 0.0, fused=True)

    task = task_of(model=plain, data=marked, optimizer=optimizer, optimizer_options={"fused": None}, global_batch=NUM - 1, epochs=4)
    found = train(task, TapeRecorder(), on_nan="skip")
    assert found.progress.num_skipped == 4 and len(found.steps) == 4
    same = train(task, on_nan="skip")
    for name, tensor in same.weights.items():
        torch.testing.assert_close(found.weights[name], tensor, rtol=1e-4, atol=1e-6)


def test_a_step_in_which_no_sample_counts_leaves_nothing(train: Train) -> None:
    """What lies between the parameters stays zero, though the sum is divided by nothing."""
    weights = np.ones(NUM)
    first = train(task_of()).parts.loader.plan
    weights[first.order(0)[first.batch(1)]] = 0.0

    def data() -> un.Splits:
        return un.Splits((PICTURES[:NUM].astype(np.float32) / 64, LABELS[:NUM], weights))

    for case in ({}, {"clip_norm": 0.5}, {"accumulate": 2}):
        found = train(task_of(data=data, epochs=2, **case), TapeRecorder())
        assert found.progress.num_skipped == 1
        assert "no sample of step 1 counts" in found.said[0] and len(found.said) == 1
        expect_same(found, train(task_of(data=data, epochs=2, **case)))


def _is(done: Sequence[int], asked: int) -> bool:
    return done[0] == asked


@pytest.mark.parametrize("asked", range(1, 9))
def test_a_vote_acts_a_few_steps_later(train: Train, asked: int) -> None:
    """As many for recorded steps as for others, and the training is as one that went so far."""
    ended = []
    for recorder in (TapeRecorder(), RefusingRecorder()):
        done = [0]
        hooks = RunHooks(stop_requested=partial(_is, done, asked), after_step=partial(done.__setitem__, 0))
        found = train(task_of(global_batch=3), recorder, hooks=hooks)
        assert found.progress.reason == "interrupted" and asked < found.progress.step <= asked + LATEST
        ended.append(found.progress.step)
        through = train(task_of(global_batch=3), recorder, max_steps=found.progress.step)
        for name, tensor in through.weights.items():
            assert torch.equal(found.weights[name], tensor), name
    assert ended[0] == ended[1]


@pytest.mark.parametrize("case", [MOMENTUM, {"accumulate": 2, "optimizer": "adam"}, {"shards": 3, **MOMENTUM}])
@pytest.mark.parametrize("stopped", [8])
def test_a_stopped_training_resumes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, case: dict[str, Any], stopped: int) -> None:
    """In the middle of an epoch: steps run as they are again before they are recorded, with the same bits."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as --shards sets it
    monkeypatch.setattr(assemble, "makes_batches_on", lambda *_: True)
    monkeypatch.setattr(Accuracy, "quick_sums", Metric.quick_sums)
    task = task_of(**case, augment=un.augment.Shift(1))

    def run(out: str, **options: Any) -> Any:
        monkeypatch.setattr(assemble, "recorder_for", lambda *_: TapeRecorder())
        return un.train(task, out=tmp_path / out, show=False, **options).summary

    expected = run("through")
    assert run("run", max_steps=stopped)["reason"] == "interrupted"
    found = run("run")
    for name in ("weights_sha256", "metrics", "steps", "best_epoch"):
        assert found[name] == expected[name], name
    assert [row["metrics"] for row in found["history"]] == [row["metrics"] for row in expected["history"]]
