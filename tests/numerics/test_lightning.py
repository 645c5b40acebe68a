"""A LightningModule is trained as it is, and gives what the same plain task gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, ReduceLROnPlateau

import unisono as un
from tests.numerics.learning import ONE_AT_A_TIME, Trained, assert_same, train
from unisono.comm.base import Communicator
from unisono.comm.single_process import single_process_communicator
from unisono.errors import UsageError
from unisono.run import execute
from unisono.task.metric_names import metric_name
from unisono.task.train_config import TrainConfig
from unisono.testing.thread_communicator import run_threads
from unisono.training.frontends.torchmetrics_states import of_all
from unisono.training.prepare import prepare
from unisono.training.training_parts import EarlierAttempt

lightning: Any = pytest.importorskip(
    "lightning.pytorch", reason="Lightning is not installed; `pip install lightning` lets these tests run"
)
from torchmetrics.classification import MulticlassAUROC, MulticlassF1Score  # noqa: E402 - it comes with Lightning

NUM_SAMPLES, NUM_VALIDATION = 23, 9
WORKERS = pytest.mark.parametrize("num_workers", [1, 2, 3])


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def heavy(parameters: Any) -> SGD:
    return SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)


class Classifier(lightning.LightningModule):  # type: ignore[misc]
    """As in any Lightning tutorial."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()
        self.seen: list[tuple[int, int, int]] = []

    def forward(self, x: Tensor) -> Any:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        outputs = self(x)
        self.seen.append((self.current_epoch, self.global_step, batch_idx))
        self.log("train_accuracy", (outputs.argmax(1) == y).double().mean(), prog_bar=True, on_step=True)
        return F.cross_entropy(outputs, y)

    def validation_step(self, batch: Any, batch_idx: int) -> Any:  # noqa: ARG002
        x, y = batch
        outputs = self(x)
        loss = F.cross_entropy(outputs, y)
        self.log_dict({"val_loss": loss, "acc": (outputs.argmax(1) == y).double().mean()}, sync_dist=True)
        return loss

    def configure_optimizers(self) -> Any:
        return heavy(self.parameters())


def data() -> un.Splits:
    draw = np.random.default_rng(0)

    def part(num: int) -> Any:
        return draw.normal(size=(num, 4)), draw.integers(0, 3, num)

    return un.Splits(train=part(NUM_SAMPLES), validation=part(NUM_VALIDATION), test=part(NUM_VALIDATION))


def task_of(model: Any, **changes: Any) -> un.Task:
    return un.Task(**{"model": model, "data": data, "global_batch": 5, "epochs": 3, **changes})


def plain_task(**changes: Any) -> un.Task:
    settings = {"loss": "cross_entropy", "metrics": ("accuracy",), "optimizer": heavy}
    return task_of(network, **{**settings, **changes})


def same_weights(found: Trained, expected: Trained) -> None:
    assert_same({name.removeprefix("net."): tensor for name, tensor in found.weights.items()}, expected.weights)


def last(found: Trained) -> dict[str, float]:
    metrics: dict[str, float] = found.progress.history[-1]["metrics"]
    return metrics


@WORKERS
def test_it_equals_the_plain_task(num_workers: int) -> None:
    (expected,) = train(plain_task())
    for found in train(task_of(Classifier), num_workers):
        same_weights(found, expected)
        plain, own = last(expected), last(found)
        assert own["loss"] == pytest.approx(plain["loss"], rel=1e-12)
        assert own["val_loss"] == pytest.approx(plain["val_loss"], rel=1e-12)
        assert own["train_accuracy"] == pytest.approx(plain["accuracy"], rel=1e-12)
        assert own["val_acc"] == pytest.approx(plain["val_accuracy"], rel=1e-12)
        assert set(own) == {"loss", "train_accuracy", "val_loss", "val_acc"}


def test_micro_batches_change_nothing() -> None:
    (expected,) = train(plain_task())
    for found in train(task_of(Classifier, accumulate=2), 2):
        same_weights(found, expected)


def test_metrics_of_the_task_get_the_output_of_forward() -> None:
    (found,) = train(task_of(Classifier, metrics=("accuracy",)))
    assert last(found)["val_accuracy"] == pytest.approx(last(found)["val_acc"])


def test_the_module_knows_where_it_is() -> None:
    (found,) = train(task_of(Classifier))
    assert found.model.seen == [(step // 5, step, step % 5) for step in range(15)]
    assert found.model.device == torch.device("cpu")


def test_what_it_logs_is_in_the_summary(tmp_path: Path) -> None:
    config = TrainConfig("", out=str(tmp_path / "run"))
    with single_process_communicator() as comm:
        metrics = execute(config, comm, task=task_of(Classifier, name="classifier", monitor="acc")).summary
    assert metrics["monitor_metric"] == "val_acc"
    assert {"loss", "train_accuracy", "val_loss", "val_acc", "test_loss", "test_acc", "best_val_acc"} <= set(metrics["metrics"])
    assert all(map(np.isfinite, metrics["metrics"].values()))


# ---- losses that are no mean over samples --------------------------------------------------------------------------


class OfTokens(Classifier):
    """Its loss is a mean over the tokens that are not ignored."""

    def __init__(self) -> None:
        super().__init__()
        self.f1 = MulticlassF1Score(num_classes=3)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.f1.update(self(batch[0])[:, 0], batch[1][:, 0])
        self.seen.append((0, 0, batch_idx))
        return F.cross_entropy(self(batch[0]).flatten(0, 1), batch[1].flatten(), ignore_index=2)


class WithDropout(Classifier):
    """An image classifier."""

    def __init__(self, batch_norm: bool = False, noise: float = 0.0) -> None:
        super().__init__()
        norm = nn.BatchNorm1d(6) if batch_norm else nn.Identity()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), norm, nn.Dropout(0.5), nn.Linear(6, 3)).double()
        self.noise = noise

    def training_step(self, batch: Any, batch_idx: int) -> Any:  # noqa: ARG002
        return F.cross_entropy(self(batch[0] + self.noise * torch.randn_like(batch[0])), batch[1])


class OfPairs(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:  # noqa: ARG002
        outputs = self(batch[0])
        return F.cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)))


def tokens() -> un.Splits:
    draw = np.random.default_rng(0)
    targets = draw.integers(0, 2, (6, 5))
    targets[-1, 1:] = 2
    return un.Splits(train=(draw.normal(size=(6, 5, 4)), targets))


@pytest.mark.parametrize(
    ("model", "part", "is_told"),
    [
        (OfTokens, tokens, True),
        (OfPairs, data, True),
        (Classifier, data, False),
        (WithDropout, data, False),
        (lambda: WithDropout(batch_norm=True), data, False),
        (lambda: WithDropout(noise=1.0), data, False),
    ],
    ids=["tokens", "pairs", "classifier", "dropout", "batch-norm", "noise"],
)
def test_a_loss_that_is_no_mean_over_samples_is_told_on_several_workers(model: Any, part: Any, is_told: bool) -> None:
    def notes(comm: Communicator) -> Sequence[str]:
        with ONE_AT_A_TIME:
            job = prepare(TrainConfig(""), comm, None, task_of(model, data=part, name="t"), EarlierAttempt())
        found = job.parts.adapter.model
        assert found.training and found.seen == [], "the loss was tried on a copy"
        assert not getattr(getattr(found, "f1", None), "update_called", False)
        return job.notes

    told = "the loss of training_step is no mean over samples, and each worker computes it from its own, so the result depends on"
    assert not any(told in note for found in run_threads(1, notes) for note in found)
    for found in run_threads(2, notes):
        assert sum(told in note for note in found) == is_told


# ---- optimisers and schedules --------------------------------------------------------------------------------------


def by_epoch(optimizer: Any) -> Any:
    return CosineAnnealingLR(optimizer, T_max=3)


def by_step(optimizer: Any, num_steps: int = 15) -> Any:
    return OneCycleLR(optimizer, max_lr=0.2, total_steps=num_steps + 1)


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("kind", ["lists", "dict", "step"])
def test_its_scheduler_sets_the_learning_rate(kind: str, num_workers: int) -> None:
    class Scheduled(Classifier):
        def configure_optimizers(self) -> Any:
            optimizer = heavy(self.parameters())
            if kind == "lists":
                return [optimizer], [by_epoch(optimizer)]
            if kind == "dict":
                return {"optimizer": optimizer, "lr_scheduler": by_epoch(optimizer)}
            cycle = by_step(optimizer, self.trainer.estimated_stepping_batches)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cycle, "interval": "step"}}

    plain = {"schedule": by_step} if kind == "step" else {"schedule": by_epoch, "schedule_options": {"interval": "epoch"}}
    (expected,) = train(plain_task(**plain))
    (constant,) = train(plain_task())
    for found in train(task_of(Scheduled), num_workers):
        same_weights(found, expected)
        assert found.progress.history[-1]["lr"] == expected.progress.history[-1]["lr"] != constant.progress.history[-1]["lr"]


class Several(Classifier):
    def configure_optimizers(self) -> Any:
        return [heavy(self.net[0].parameters()), Adam(self.net[2].parameters())]


class ByHand(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class OnPlateau(Classifier):
    def configure_optimizers(self) -> Any:
        optimizer = heavy(self.parameters())
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": ReduceLROnPlateau(optimizer), "monitor": "val_loss"}}


class Clipping(Classifier):
    def configure_gradient_clipping(self, *args: Any, **kwargs: Any) -> None:
        """Never called here."""


class Silent(Classifier):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Tells nothing."""


class WithoutLoss(Classifier):
    def training_step(self, *_: Any) -> Any:
        return None


class AskingMuch(Classifier):
    def training_step(self, *_: Any) -> Any:
        return self.trainer.strategy


class LoggingMuch(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("outputs", self(batch[0]))
        return super().training_step(batch, batch_idx)


class Thawing(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.net[0].requires_grad_(False)

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.net[0].requires_grad_(True)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Thawing, r"net\.0\.weight was frozen when the training began and is not any more"),
        (Several, r"2 optimizers .* un.Task\(step=...\)"),
        (ByHand, r"automatic_optimization = False.*un.Task\(step=...\)"),
        (OnPlateau, "ReduceLROnPlateau depends on a metric"),
        (Clipping, "configure_gradient_clipping, which is not called here.*clip_norm"),
        (Silent, "returns no loss and logs nothing"),
        (WithoutLoss, "training_step of WithoutLoss returned no loss"),
        (AskingMuch, "uses trainer.strategy, but no Lightning Trainer"),
        (LoggingMuch, r"self.log\('outputs'\) received a tensor of shape \(5, 3\)"),
    ],
)
def test_what_cannot_be_done_is_refused(model: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        train(task_of(model))


@pytest.mark.parametrize(
    "setting",
    [
        {"lr": 0.1},
        {"optimizer": "adam"},
        {"loss": "cross_entropy"},
        {"schedule": "cosine"},
        {"optimizer_options": {"momentum": 0.9}},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_settings_that_the_module_would_not_read_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(setting))} of the task has no effect"):
        train(task_of(Classifier, **setting))


def test_a_learning_rate_that_no_optimizer_reads_is_refused() -> None:
    with pytest.raises(UsageError, match=r"lr 0.1 of the task \(--lr\) has no effect"):
        train(plain_task(lr=0.1))


def test_with_a_step_of_the_task_it_is_a_plain_module() -> None:
    def step(self: un.OwnStep, batch: Any) -> None:
        self.minimise(F.cross_entropy(self.model(batch[0]), batch[1], reduction="none"))

    (expected,) = train(plain_task())
    for found in train(task_of(ByHand, step=step, optimizer=heavy, loss="cross_entropy"), 2):
        same_weights(found, expected)


# ---- TorchMetrics --------------------------------------------------------------------------------------------------


class Measured(Classifier):
    """With metric objects, logged as such or computed by hand: one of counts, one of the scores of all samples."""

    def __init__(self) -> None:
        super().__init__()
        self.train_f1, self.f1 = (MulticlassF1Score(num_classes=3, average="macro") for _ in range(2))
        self.auc = MulticlassAUROC(num_classes=3)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.train_f1(self(batch[0]), batch[1])
        self.log("train_f1", self.train_f1)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        outputs = self(batch[0])
        self.f1.update(outputs, batch[1])
        self.auc.update(outputs.softmax(1), batch[1])
        self.log("val_f1", self.f1)
        return super().validation_step(batch, batch_idx)

    def on_validation_epoch_end(self) -> None:
        self.log("val_auc", self.auc.compute())
        self.auc.reset()


@WORKERS
def test_metric_objects_are_of_all_samples(num_workers: int) -> None:
    (expected,) = train(plain_task(metrics=("f1", "auc")))
    (alone_,) = train(task_of(Measured))
    for found in train(task_of(Measured), num_workers):
        for own, plain in zip(found.progress.history, expected.progress.history, strict=True):
            assert own["metrics"]["val_f1"] == pytest.approx(plain["metrics"]["val_f1"], rel=1e-6)
            assert own["metrics"]["val_auc"] == pytest.approx(plain["metrics"]["val_auc"], rel=1e-6)
        assert last(found)["train_f1"] == last(alone_)["train_f1"]


def test_a_worker_without_samples_learns_what_the_others_have() -> None:
    def body(comm: Communicator) -> list[Tensor]:
        return of_all(comm, torch.empty(0) if comm.rank == 1 else torch.arange(2 * comm.rank + 2).view(-1, 2))

    for found in run_threads(3, body):
        assert [tuple(one.shape) for one in found] == [(1, 2), (0, 2), (3, 2)]
        assert all(one.dtype == torch.int64 for one in found)
        assert found[2].flatten().tolist() == [0, 1, 2, 3, 4, 5]


# ---- hooks and names -----------------------------------------------------------------------------------------------


class Hooked(Classifier):
    """Keeps outputs from batch to batch, as many do."""

    def __init__(self) -> None:
        lightning.LightningModule.__init__(self)  # the layers come later, in configure_model
        self.seen = []
        self.calls: list[str] = []
        self.right: list[Tensor] = []

    def setup(self, stage: str) -> None:
        self.calls.append(f"setup {stage}")

    def configure_model(self) -> None:
        self.net = network()

    def on_train_epoch_start(self) -> None:
        self.calls.append(f"train {self.current_epoch}")

    def on_train_epoch_end(self) -> None:
        self.calls.append(f"trained {self.global_step}")

    def on_validation_epoch_start(self) -> None:
        self.calls.append("trying" if self.trainer.sanity_checking else "validation")
        self.right.clear()

    def validation_step(self, batch: Any) -> Any:  # type: ignore[override] # the number of the batch may be left out
        x, y = batch
        self.right.append(self(x).argmax(1) == y)
        assert not self.training
        return {"loss": F.cross_entropy(self(x), y)}

    def on_validation_epoch_end(self) -> None:
        self.log("val/acc", torch.cat(self.right).double().mean())


@WORKERS
def test_hooks_of_epochs_are_called(num_workers: int) -> None:
    (expected,) = train(plain_task())
    for found in train(task_of(Hooked), num_workers):
        same_weights(found, expected)
        assert last(found)["val_acc"] == pytest.approx(last(expected)["val_accuracy"], rel=1e-12)
        assert found.model.calls == [
            "setup fit",
            "trying",
            *("train 0", "trained 5", "validation"),
            *("train 1", "trained 10", "validation"),
            *("train 2", "trained 15", "validation"),
        ]


def test_a_batch_may_say_its_size_and_skipped_steps_are_not_counted() -> None:
    class Weighing(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("number", float(batch_idx), batch_size=1 + batch_idx)
            self.log("finite", batch[0].sum())
            return super().training_step(batch, batch_idx)

    def poisoned() -> un.Splits:
        x, y = (part.copy() for part in data().train.batch)  # type: ignore[attr-defined]
        x[3] = np.nan
        return un.Splits(train=(x, y))

    (found,) = train(task_of(Weighing, data=poisoned), on_nan="skip")
    assert last(found)["number"] == pytest.approx(sum(i * (1 + i) for i in range(5)) / 15)
    assert np.isfinite(last(found)["finite"])
    assert found.progress.num_skipped == 3


@pytest.mark.parametrize(
    ("name", "expected"),
    [("acc", "val_acc"), ("val_acc", "val_acc"), ("val/acc", "val_acc"), ("test_acc", "val_acc"), ("value", "val_value")],
)
def test_names_begin_once_with_what_was_evaluated(name: str, expected: str) -> None:
    assert metric_name("val_", name) == expected
