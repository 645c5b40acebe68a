"""One replica learns as a plain loop of torch does, step by step, whatever the model, the loss, the optimiser and the workers."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, Optimizer

import unisono as un
from tests.numerics.learning import ONE_AT_A_TIME, Learner, Weights, assert_same, learn, part_of, plain, train, weights_of
from unisono.comm.base import Communicator
from unisono.comm.single_process import single_process_communicator
from unisono.data.sharding_plan import Plan
from unisono.errors import UsageError
from unisono.model.flat import ALIGN_BYTES
from unisono.own_loop import DistributedOptimizer, ShardedLoader
from unisono.testing.thread_communicator import run_threads

WORKERS = pytest.mark.parametrize("num_workers", [1, 2, 3])


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def mlp(seed: int = 0, width: int = 6) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 3)).double()


def batches(num: int = 4, size: int = 7, seed: int = 0) -> list[Any]:
    draw = random(seed)
    return [(draw.normal(size=(size, 4)), draw.normal(size=(size, 3))) for _ in range(num)]


def mean_square(model: nn.Module, batch: Any) -> Tensor:
    return F.mse_loss(model(batch[0]), batch[1])


def sgd(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=0.1)


def heavy(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)


def adam(model: nn.Module) -> Optimizer:
    return Adam(model.parameters(), lr=0.01)


def grouped(model: nn.Module) -> Optimizer:
    free = [one for one in model.parameters() if one.dim() == 1]
    decayed = [one for one in model.parameters() if one.dim() > 1]
    return AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": free, "weight_decay": 0.0, "lr": 0.003}], lr=0.01)


# ---- the update ----------------------------------------------------------------------------------------------------


@WORKERS
@pytest.mark.parametrize("make_optimizer", [heavy, adam, grouped])
def test_a_step_is_that_of_a_plain_loop(make_optimizer: Any, num_workers: int) -> None:
    expected = plain(mlp(), make_optimizer, batches(), mean_square)
    for found in learn(mlp(), make_optimizer, batches(), num_workers):
        assert_same(found, expected)


def test_one_worker_gives_the_same_bits() -> None:
    """Where the division by the weight rounds nothing."""
    even = batches(size=8)
    (found,) = learn(mlp(), heavy, even, loss=lambda outputs, targets: ((outputs - targets) ** 2).sum(1))
    expected = plain(mlp(), heavy, even, lambda model, batch: ((model(batch[0]) - batch[1]) ** 2).sum() / 8)
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_micro_batches_add_up_to_one_batch() -> None:
    expected = plain(mlp(), heavy, batches(), mean_square)
    learner = Learner(single_process_communicator(), mlp(), heavy)
    for batch in batches():
        stats = learner.step([part_of(batch, 3, piece) for piece in range(3)])
        assert stats.num_samples == 7
    assert_same(weights_of(learner.adapter.model), expected)


@WORKERS
def test_accumulate_of_a_task_changes_nothing(num_workers: int) -> None:
    expected = train(regression_task(accumulate=1))[0].weights
    for found in train(regression_task(accumulate=3), num_workers):
        assert_same(found.weights, expected)


@WORKERS
@pytest.mark.parametrize("clip_norm", [1e-3, 0.5, 1e6])
def test_clipping_is_that_of_torch(clip_norm: float, num_workers: int) -> None:
    expected = plain(mlp(), heavy, batches(), mean_square, clip_norm)
    for found in learn(mlp(), heavy, batches(), num_workers, clip_norm=clip_norm):
        assert_same(found, expected)


def test_frozen_parameters_stay_as_they_are() -> None:
    def frozen() -> nn.Sequential:
        model = mlp()
        model[0].weight.requires_grad_(False)
        return model

    before = weights_of(frozen())
    expected = plain(frozen(), heavy, batches(), mean_square)
    for found in learn(frozen(), heavy, batches(), 2):
        assert_same(found, expected)
        assert torch.equal(found["0.weight"], before["0.weight"])
        assert not torch.equal(found["0.bias"], before["0.bias"])


def test_a_model_without_anything_to_learn_is_refused() -> None:
    with pytest.raises(UsageError, match="no trainable parameters"):
        Learner(single_process_communicator(), mlp().requires_grad_(False), sgd)


# ---- which parameters a step uses ----------------------------------------------------------------------------------


class Branches(nn.Module):
    """The first input of a batch says which branch its rows take."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = mlp(1), mlp(2)

    def forward(self, x: Tensor) -> Tensor:
        is_high = x[:, 0] > 0
        outputs: Tensor
        if is_high.all():
            outputs = self.high(x)
        elif not is_high.any():
            outputs = self.low(x)
        else:
            outputs = torch.where(is_high[:, None], self.high(x), self.low(x))
        return outputs


def turned(batch: Any, signs: Any) -> Any:
    x, y = batch
    x = x.copy()
    x[:, 0] = np.abs(x[:, 0]) * signs
    return x, y


def branch_loss(model: nn.Module, batch: Any) -> Tensor:
    return F.mse_loss(model(batch[0]), batch[1])


@WORKERS
@pytest.mark.parametrize("make_optimizer", [heavy, adam])
def test_parameters_that_no_worker_used_are_not_updated(make_optimizer: Any, num_workers: int) -> None:
    """Momentum and weight decay would move it even where its gradient is zero."""
    both, low_only, high_only = batches(3, size=6)
    steps = [turned(both, [1, -1] * 3), turned(low_only, -1), turned(high_only, 1), turned(low_only, -1)]
    expected = plain(Branches(), make_optimizer, steps, branch_loss)
    for found in learn(Branches(), make_optimizer, steps, num_workers):
        assert_same(found, expected)


def test_parameters_that_another_worker_used_are_updated_here_too() -> None:
    steps = [turned(batch, [-1, -1, -1, 1, 1, 1]) for batch in batches(3, size=6)]  # each worker uses its own branch only
    expected = plain(Branches(), heavy, steps, branch_loss)
    before = weights_of(Branches())
    for found in learn(Branches(), heavy, steps, 2):
        assert_same(found, expected)
        assert all(not torch.equal(found[name], before[name]) for name in before)


def test_tied_weights_learn_from_both_uses() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.into, self.out = nn.Linear(4, 5, bias=False).double(), nn.Linear(4, 5, bias=False).double()
            self.out.weight = self.into.weight

        def forward(self, x: Tensor) -> Tensor:
            return F.tanh(self.into(x)) @ self.out.weight[:, :3]

    expected = plain(Tied(), heavy, batches(), mean_square)
    for found in learn(Tied(), heavy, batches(), 2):
        assert_same(found, expected)
        assert torch.equal(found["into.weight"], found["out.weight"])


# ---- batches and losses --------------------------------------------------------------------------------------------


class Two(nn.Module):
    """Several inputs, several outputs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.left, self.right = nn.Linear(4, 3).double(), nn.Linear(2, 3).double()

    def forward(self, image: Tensor, table: Tensor) -> dict[str, Tensor]:
        return {"sum": self.left(image) + self.right(table), "right": self.right(table)}


def of_two(outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
    return ((outputs["sum"] - targets["y"]) ** 2).mean(1) + outputs["right"].abs().mean(1)


@pytest.mark.parametrize("kind", [tuple, dict])
def test_several_inputs_and_outputs(kind: type) -> None:
    draw = random(1)
    steps = []
    for _ in range(3):
        image, table, y = draw.normal(size=(7, 4)), draw.normal(size=(7, 2)), draw.normal(size=(7, 3))
        inputs = (image, table) if kind is tuple else {"table": table, "image": image}
        steps.append((inputs, {"y": y}))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        inputs, targets = batch
        outputs = model(*inputs) if kind is tuple else model(**inputs)
        return of_two(outputs, targets).mean()

    expected = plain(Two(), heavy, steps, loss)
    for found in learn(Two(), heavy, steps, 3, loss=of_two):
        assert_same(found, expected)


def labelled(num: int = 3, seed: int = 2) -> list[Any]:
    draw = random(seed)
    return [(draw.normal(size=(8, 4)), draw.integers(0, 3, 8)) for _ in range(num)]


def test_sample_weights_weigh_the_mean() -> None:
    draw = random(3)
    steps = [(x, y, draw.uniform(0, 2, 8)) for x, y in labelled()]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, y, weights = batch
        losses: Tensor = F.cross_entropy(model(x), y, reduction="none") * weights
        return losses.sum() / float(weights.sum())

    expected = plain(mlp(), heavy, steps, loss)
    for found in learn(mlp(), heavy, steps, 3, loss="cross_entropy"):
        assert_same(found, expected)


@pytest.mark.parametrize(
    ("options", "of_torch"),
    [
        ({"class_weights": (0.2, 1.0, 3.0)}, {"weight": torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)}),
        ({"ignore_label": 1}, {"ignore_index": 1}),
        ({"label_smoothing": 0.1}, {"label_smoothing": 0.1}),
        ({}, {}),
    ],
    ids=["class weights", "ignored label", "smoothing", "plain"],
)
@pytest.mark.parametrize("num_workers", [1, 3])
def test_cross_entropy_with_options_is_that_of_torch(options: Any, of_torch: Any, num_workers: int) -> None:
    expected = plain(mlp(), heavy, labelled(), lambda model, b: F.cross_entropy(model(b[0]), b[1], **of_torch))
    for found in learn(mlp(), heavy, labelled(), num_workers, loss="cross_entropy", loss_options=options):
        assert_same(found, expected)


@pytest.mark.parametrize(
    ("name", "of_torch"),
    [("bce", F.binary_cross_entropy_with_logits), ("mse", F.mse_loss), ("mae", F.l1_loss), ("huber", F.huber_loss)],
)
def test_losses_of_many_labels_and_of_regression(name: str, of_torch: Callable[..., Tensor]) -> None:
    draw = random(4)
    steps = [(draw.normal(size=(7, 4)), draw.integers(0, 2, (7, 3)).astype(np.float64)) for _ in range(3)]
    expected = plain(mlp(), heavy, steps, lambda model, b: of_torch(model(b[0]), b[1]))
    for found in learn(mlp(), heavy, steps, 2, loss=name):
        assert_same(found, expected)


def pictures(channels: int = 2, seed: int = 5) -> list[Any]:
    draw = random(seed)
    return [(draw.normal(size=(5, channels, 6, 6)), draw.integers(0, 3, (5, 6, 6))) for _ in range(3)]


def convolutions() -> nn.Module:
    torch.manual_seed(6)
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1)).double()


def of_pixels(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def test_segmentation() -> None:
    expected = plain(convolutions(), heavy, pictures(), of_pixels)
    for found in learn(convolutions(), heavy, pictures(), 2, loss="cross_entropy"):
        assert_same(found, expected)


def test_channels_last_weights_keep_their_strides() -> None:
    def last() -> nn.Module:
        return convolutions().to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    expected = plain(convolutions(), heavy, pictures(), of_pixels)
    for found in learn(last(), heavy, pictures(), 2, loss="cross_entropy"):
        assert_same(found, expected)
    learner = Learner(single_process_communicator(), last(), heavy, loss="cross_entropy")
    learner.step(pictures()[:1])
    for convolution in (learner.adapter.model[0], learner.adapter.model[2]):  # type: ignore[index]
        assert convolution.weight.is_contiguous(memory_format=torch.channels_last)
        assert convolution.weight.grad.stride() == convolution.weight.stride()


# ---- memory --------------------------------------------------------------------------------------------------------


def test_parameters_and_gradients_lie_in_one_vector() -> None:
    learner = Learner(single_process_communicator(), mlp(width=5), heavy)
    part = learner.part
    (values,), (gradients,) = part.values.values(), part.gradients.values()
    learner.step(batches(1))
    for name, parameter in learner.adapter.model.named_parameters():
        entry = next(entry for entry in part.layout.entries if entry.name == name)
        for tensor, vector in ((parameter, values), (parameter.grad, gradients)):
            assert tensor is not None
            assert tensor.data_ptr() == vector.data_ptr() + entry.offset * 8
            assert tensor.data_ptr() % ALIGN_BYTES == 0
            assert torch.equal(vector[entry.offset : entry.offset + entry.numel].view(entry.shape), tensor)
    held = np.zeros(len(values), dtype=bool)
    for entry in part.layout.entries:
        held[entry.offset : entry.offset + entry.numel] = True
    assert not held.all()
    assert not values[torch.from_numpy(~held)].any()
    assert not gradients[torch.from_numpy(~held)].any()


def test_user_code_may_drop_the_gradients() -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, x: Tensor) -> Tensor:
            self.zero_grad(set_to_none=True)
            out: Tensor = self.inner(x)
            return out

    expected = plain(Dropping(), heavy, batches(), mean_square)
    learner = Learner(single_process_communicator(), Dropping(), heavy)
    (gradients,) = learner.part.gradients.values()
    for batch in batches():
        learner.step((batch,))
        for parameter in learner.adapter.model.parameters():
            assert parameter.grad is not None
            assert parameter.grad.untyped_storage().data_ptr() == gradients.untyped_storage().data_ptr()
        learner.adapter.model.zero_grad(set_to_none=True)
    assert_same(weights_of(learner.adapter.model), expected)


def test_gradients_that_user_code_dropped_come_back_where_only_another_worker_used_them() -> None:
    steps = [turned(batch, [-1, -1, -1, 1, 1, 1]) for batch in batches(3, size=6)]
    expected = plain(Branches(), heavy, steps, branch_loss)

    def body(comm: Communicator) -> Weights:
        with ONE_AT_A_TIME:
            model = Branches()
        learner = Learner(comm, model, heavy)
        for batch in steps:
            learner.step((part_of(batch, comm.size, comm.rank),))
            learner.adapter.model.zero_grad(set_to_none=True)
        return weights_of(learner.adapter.model)

    for found in run_threads(2, body):
        assert_same(found, expected)


def test_running_statistics_become_their_mean_over_the_workers() -> None:
    def normed() -> nn.Module:
        torch.manual_seed(7)
        return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()

    steps = batches(3, size=8)

    def body(comm: Communicator) -> tuple[Weights, Weights]:
        learner = Learner(comm, normed(), sgd)
        for batch in steps:
            learner.step((part_of(batch, comm.size, comm.rank),))
        before = weights_of(learner.adapter.model)
        learner.algorithm.synchronise()
        return before, weights_of(learner.adapter.model)

    (own_0, settled_0), (own_1, settled_1) = run_threads(2, body)
    for name in ("1.running_mean", "1.running_var"):
        assert not torch.equal(own_0[name], own_1[name])
        assert torch.equal(settled_0[name], settled_1[name])
        torch.testing.assert_close(settled_0[name], (own_0[name] + own_1[name]) / 2, rtol=1e-14, atol=0)
    assert settled_0["1.num_batches_tracked"] == 3


class Mixed(nn.Module):
    """State of all kinds, different on every rank when it is made."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.free = nn.Conv2d(2, 4, 3).double()
        self.frozen = nn.Conv2d(2, 4, 3).double().requires_grad_(False)
        self.frozen.weight.data = self.frozen.weight.data.to(memory_format=torch.channels_last)
        self.register_buffer("mask", torch.rand(3, 3) > 0.5)
        self.register_buffer("turns", torch.randn(3, dtype=torch.complex64))
        self.register_buffer("count", torch.tensor(seed))
        self.register_buffer("mean", torch.randn(3))
        self.register_buffer("nothing", torch.empty(0))


@pytest.mark.parametrize("loop", ["of the algorithm", "of the user"])
def test_replicas_begin_with_all_that_rank_0_has(loop: str) -> None:
    def body(comm: Communicator) -> Weights:
        with ONE_AT_A_TIME:
            model = Mixed(comm.rank)
        if loop == "of the user":
            DistributedOptimizer(sgd(model), model, comm)
        else:
            Learner(comm, model, sgd)
        return weights_of(model)

    expected = weights_of(Mixed(0))
    for found in run_threads(3, body):
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_buffers_that_never_change_keep_their_bits() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()
            self.register_buffer("scale", torch.full((1,), 0.1, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x) * self.scale
            return out

    assert (0.1 + 0.1 + 0.1) / 3 != 0.1
    for found in train(regression_task(model=Scaled), 3):
        assert found.weights["scale"].item() == 0.1


def test_modules_that_the_user_keeps_in_eval_mode_stay_there() -> None:
    model = mlp()
    model[0].eval()
    learner = Learner(single_process_communicator(), model, sgd)
    learner.adapter.evaluate(batches(1)[0])
    assert [module.training for module in model.modules()] == [True, False, True, True]


# ---- through a task ------------------------------------------------------------------------------------------------


def regression_data(num_samples: int = 23) -> un.Splits:
    draw = random(8)
    x = draw.normal(size=(num_samples, 4))
    return un.Splits(train=(x, draw.normal(size=(num_samples, 3))), validation=(x[:5], draw.normal(size=(5, 3))))


def regression_task(**changes: Any) -> un.Task:
    settings: dict[str, Any] = {"loss": "mse", "optimizer": lambda model: heavy(model), "global_batch": 5, "epochs": 2}
    return un.Task(**{"model": mlp, "data": regression_data, **settings, **changes})


def epochs_of(data: Any, global_batch: int, num_epochs: int) -> list[Any]:
    """The batches that a task is trained with, as one worker sees them."""
    plan = Plan(len(data[1]), global_batch)
    orders = [plan.order(epoch) for epoch in range(num_epochs)]
    return [tuple(part[order[plan.batch(step)]] for part in data) for order in orders for step in range(plan.steps_per_epoch)]


def regression_steps() -> list[Any]:
    return epochs_of(regression_data().train.batch, 5, 2)  # type: ignore[attr-defined]


@WORKERS
def test_a_task_is_a_plain_loop_over_its_epochs(num_workers: int) -> None:
    """23 samples in batches of 5: the last has 3, so that at 2 workers they are uneven."""
    expected = plain(mlp(), heavy, regression_steps(), mean_square)
    for found in train(regression_task(), num_workers):
        assert_same(found.weights, expected)
        assert found.progress.step == 10


def test_a_short_last_batch_may_leave_a_worker_without_samples() -> None:
    data = un.Splits(train=regression_data(13).train)
    task = regression_task(data=lambda: data, global_batch=4, loss="mse")  # 13 = 3 * 4 + 1, and 3 workers
    expected = plain(mlp(), heavy, epochs_of(data.train.batch, 4, 2), mean_square)  # type: ignore[attr-defined]
    for found in train(task, 3):
        assert_same(found.weights, expected)
        assert found.progress.num_samples == 26


def test_lazy_modules_get_their_shapes_from_the_data() -> None:
    def lazy() -> nn.Module:
        return nn.Sequential(nn.LazyLinear(6), nn.Tanh(), nn.LazyLinear(3)).double()

    for found in train(regression_task(model=lazy), 2):
        assert {name: tuple(one.shape) for name, one in found.weights.items()} == {
            "0.weight": (6, 4),
            "0.bias": (6,),
            "2.weight": (3, 6),
            "2.bias": (3,),
        }
        assert found.progress.history[-1]["metrics"]["loss"] < found.progress.history[0]["metrics"]["loss"]


def test_bf16_is_near() -> None:
    def single() -> nn.Module:
        return mlp(width=32).float()

    exact, rounded = (train(regression_task(model=single, precision=kind))[0] for kind in ("float32", "bf16"))
    one, other = (found.progress.history[-1]["metrics"]["loss"] for found in (exact, rounded))
    assert one != other
    assert other == pytest.approx(one, rel=0.02)
    assert all(tensor.dtype == torch.float32 for tensor in rounded.weights.values())


# ---- a step of the task's own --------------------------------------------------------------------------------------


class Adversaries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(9)
        self.critic = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).double()
        self.generator = nn.Linear(2, 4).double()  # fewer tensors than the critic


def gan_step(self: un.OwnStep, batch: Any) -> None:
    (real, noise), _ = batch
    model: Any = self.model
    fake = model.generator(noise)
    self.minimise(F.softplus(-model.critic(real)) + F.softplus(model.critic(fake.detach())), "critic")
    self.minimise(F.softplus(-model.critic(fake)), "generator")


def gan_data() -> tuple[Any, ...]:
    draw = random(10)
    return (draw.normal(size=(14, 4)), draw.normal(size=(14, 2))), np.zeros(14)


@WORKERS
def test_a_gan_is_a_plain_gan(num_workers: int) -> None:
    inputs, targets = gan_data()
    task = un.Task(
        model=Adversaries,
        data=lambda: un.Splits(train=un.Arrays(inputs, targets)),
        step=gan_step,
        optimizer={"critic": ("adam", {"lr": 0.02}), "generator": "adam"},
        lr=0.01,
        global_batch=4,  # the last batch has two samples, and one of three workers none
        epochs=2,
    )
    model = Adversaries()
    critic, generator = Adam(model.critic.parameters(), lr=0.02), Adam(model.generator.parameters(), lr=0.01)
    for real, noise, _ in epochs_of((*inputs, targets), 4, 2):
        fake = model.generator(torch.as_tensor(noise))
        critic.zero_grad()
        loss = (F.softplus(-model.critic(torch.as_tensor(real))) + F.softplus(model.critic(fake.detach()))).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        critic.step()
        generator.zero_grad()
        F.softplus(-model.critic(fake)).mean().backward()  # type: ignore[no-untyped-call]
        generator.step()
    for found in train(task, num_workers):
        assert_same(found.weights, weights_of(model))
        assert {"loss", "loss_critic", "loss_generator"} <= found.progress.history[-1]["metrics"].keys()


# ---- what is not a number ------------------------------------------------------------------------------------------


def poisoned(bad: int = 7) -> tuple[Any, Any]:
    x, y = (part.copy() for part in regression_data().train.batch)  # type: ignore[attr-defined]
    x[bad] = np.nan
    return x, y


@WORKERS
def test_a_loss_that_is_not_finite_stops_before_the_update(num_workers: int) -> None:
    data = poisoned()
    steps = epochs_of(data, 5, 1)
    bad = next(number for number, (x, _) in enumerate(steps) if np.isnan(x).any())
    expected = plain(mlp(), heavy, steps[:bad], mean_square)
    hidden = un.Splits(train=un.Arrays(*data).map(lambda batch: batch))  # what lies in memory would be seen before
    for found in train(regression_task(data=lambda: hidden), num_workers):
        assert_same(found.weights, expected)
        assert found.progress.reason == "not finite"
        assert f"step {bad} " in found.progress.failure
        assert "sample 7," in found.progress.failure


def test_an_infinite_loss_with_finite_gradients_is_left_out_too() -> None:
    learner = Learner(
        single_process_communicator(), mlp(), heavy, loss=lambda outputs, targets: ((outputs - targets) ** 2).sum(1) + torch.inf
    )
    before = weights_of(learner.adapter.model)
    assert learner.step(batches(1)).num_not_finite == 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in learner.adapter.model.state_dict().items())


@WORKERS
def test_skip_leaves_out_the_update_and_continues(num_workers: int) -> None:
    data = poisoned()
    steps = [(x, y) for x, y in epochs_of(data, 5, 2) if not np.isnan(x).any()]
    expected = plain(mlp(), heavy, steps, mean_square)
    for found in train(regression_task(data=lambda: un.Splits(train=data)), num_workers, on_nan="skip"):
        assert_same(found.weights, expected)
        assert found.progress.reason == "finished"
        assert found.progress.num_skipped == 2
        assert np.isfinite(found.progress.history[-1]["metrics"]["loss"])


# ---- the user's own loop -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.parametrize("make_optimizer", [heavy, grouped])
def test_an_own_loop_is_the_plain_loop(make_optimizer: Any, num_workers: int) -> None:
    data = regression_data().train.batch  # type: ignore[attr-defined]
    expected = plain(mlp(), make_optimizer, epochs_of(data, 11, 2), mean_square)  # 23 = 2 * 11 + 1: uneven, then empty

    def body(comm: Communicator) -> Weights:
        model = deepcopy(start) if comm.rank == 0 else mlp(seed=99)  # the replicas take rank 0's weights
        optimizer = DistributedOptimizer(make_optimizer(model), model, comm)
        loader = ShardedLoader(data, comm, global_batch=11)
        assert len(loader) == 3
        for epoch in range(2):
            for x, y in loader.epoch(epoch):
                optimizer.zero_grad()
                if len(x):
                    F.mse_loss(model(x), y).backward()  # type: ignore[no-untyped-call]
                optimizer.step(num_samples=len(x))
        return weights_of(model)

    start = mlp()
    for found in run_threads(num_workers, body):
        assert_same(found, expected)
