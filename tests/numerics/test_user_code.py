"""What user code does beside the loop (hooks, unfrozen layers, optimisers with a past, losses that are computed early) gives what
it gives in plain torch, or is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adagrad, Adam, Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.optim.optimizer import register_optimizer_step_post_hook

import unisono as un
from tests.numerics.learning import Learner, Weights, assert_same, learn, part_of, plain, train, weights_of
from unisono.comm.base import Communicator
from unisono.comm.single_process import single_process_communicator
from unisono.data.sharding_plan import Plan
from unisono.errors import UsageError
from unisono.run import execute
from unisono.task.train_config import TrainConfig
from unisono.testing.thread_communicator import run_threads
from unisono.training.batch_norms import accumulate_note, effect_of_workers

WORKERS = pytest.mark.parametrize("num_workers", [1, 2])
NUM_SAMPLES, BATCH, EPOCHS = 14, 5, 3
STEPS_PER_EPOCH = 3


def mlp(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def heavy(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)


def mean_square(model: nn.Module, batch: Any) -> Tensor:
    return F.mse_loss(model(batch[0]), batch[1])


def samples() -> tuple[Any, Any]:
    draw = np.random.default_rng(3)
    return draw.normal(size=(NUM_SAMPLES, 4)), draw.normal(size=(NUM_SAMPLES, 3))


def steps() -> list[Any]:
    """The batches of a task, as one worker sees them."""
    x, y = samples()
    plan = Plan(NUM_SAMPLES, BATCH)
    orders = [plan.order(epoch) for epoch in range(EPOCHS)]
    return [(x[order[plan.batch(s)]], y[order[plan.batch(s)]]) for order in orders for s in range(STEPS_PER_EPOCH)]


def task_of(model: Any = mlp, optimizer: Any = lambda model: heavy(model), **settings: Any) -> un.Task:
    made: dict[str, Any] = {"loss": "mse", "global_batch": BATCH, "epochs": EPOCHS, **settings}
    return un.Task(model=model, data=lambda: un.Splits(train=samples()), optimizer=optimizer, **made)


# ---- hooks of parameters -------------------------------------------------------------------------------------------------


def mask_gradients(model: nn.Module) -> None:
    """In every backward pass each parameter gets another tensor as its gradient."""

    def replace(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad = parameter.grad * (torch.arange(parameter.numel()).reshape(parameter.shape) % 2)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(replace)  # type: ignore[no-untyped-call]


def masking(model: nn.Module) -> Optimizer:
    mask_gradients(model)
    return heavy(model)


@pytest.mark.parametrize("bucket_mb", [8.0, 1e-6])
@WORKERS
def test_gradients_that_a_hook_replaces_are_summed_as_in_plain_torch(bucket_mb: float, num_workers: int) -> None:
    """The hook is registered with the optimiser, thus after the parameters were moved."""
    expected = plain(mlp(), masking, steps(), mean_square)
    for found in learn(mlp(), masking, steps(), num_workers, bucket_mb=bucket_mb):
        assert_same(found, expected)


def test_gradients_that_are_replaced_after_they_were_sent_are_refused() -> None:
    def body(comm: Communicator) -> None:
        learner = Learner(comm, mlp(), heavy, bucket_mb=1e-6)
        mask_gradients(learner.adapter.model)
        learner.step((part_of(steps()[0], comm.size, comm.rank),))

    with pytest.raises(UsageError, match="was replaced after it had been sent to the other workers; register hooks"):
        run_threads(2, body)


# ---- values of parameters that user code replaces ------------------------------------------------------------------------


class Clamping(nn.Module):
    """Each forward pass in training puts other tensors in the place of the values of the parameters."""

    def __init__(self, most: float = 0.3, narrows: bool = False) -> None:
        super().__init__()
        self.net: Any = mlp()
        self.most = most
        self.narrows = narrows

    def forward(self, x: Tensor) -> Any:
        if self.training:
            for parameter in self.net.parameters():
                parameter.data = parameter.data.clamp(-self.most, self.most)
            if self.narrows:  # as one would cut channels off
                last = self.net[2].bias
                last.data = last.data[:1]
        return self.net(x)


@WORKERS
def test_values_of_parameters_that_user_code_replaces_are_trained_as_in_plain_torch(num_workers: int) -> None:
    whole = [step for step in steps() if len(step[0]) == BATCH]  # every worker has samples, thus a forward pass, in each step
    expected = plain(Clamping(), heavy, whole, mean_square)
    for found in learn(Clamping(), heavy, whole, num_workers):
        assert_same(found, expected)


def test_parameters_that_change_their_shape_in_a_training_are_refused() -> None:
    with pytest.raises(UsageError, match=r"net\.2\.bias got another shape, type or device after the training had begun"):
        learn(Clamping(narrows=True), heavy, steps())


# ---- parameters that are unfrozen, groups that are added -----------------------------------------------------------------

FIRST_FREE = 4
"""The step from which the first layer learns."""


class Unfreezing(nn.Module):
    """Its first layer learns from a later step on; `freezes` says how it is kept from learning before."""

    freezes = True

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()
        self.num_steps = 0
        self.net[0].requires_grad_(not self.freezes)

    def forward(self, x: Tensor) -> Any:
        learns = self.num_steps >= FIRST_FREE
        if self.training:
            self.num_steps += 1
        if self.freezes:
            self.net[0].requires_grad_(learns)
            return self.net(x)
        with torch.set_grad_enabled(learns and torch.is_grad_enabled()):
            first = self.net[0](x)
        return self.net[2](self.net[1](first))


class Detaching(Unfreezing):
    freezes = False


@pytest.mark.parametrize("optimizer", ["sgd", lambda model: heavy(model)], ids=["by name", "of all parameters"])
@WORKERS
def test_parameters_that_are_unfrozen_later_are_refused(optimizer: Any, num_workers: int) -> None:
    with pytest.raises(UsageError, match=r"net\.0\.weight was frozen when the training began .*; leave requires_grad on"):
        train(task_of(Unfreezing, optimizer), num_workers)


@WORKERS
def test_the_remedy_for_unfreezing_gives_what_unfreezing_gives_in_plain_torch(num_workers: int) -> None:
    expected = plain(Unfreezing(), heavy, steps(), mean_square)
    assert not torch.equal(expected["net.0.weight"], mlp().state_dict()["0.weight"])
    for found in train(task_of(Detaching), num_workers):
        assert_same(found.weights, expected)


def test_groups_that_are_added_later_are_refused() -> None:
    learner = one_learner(heavy)
    learner.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    with pytest.raises(UsageError, match="parameter groups that were added after the training had begun"):
        learner.step((steps()[0],))


def one_learner(make: Callable[[nn.Module], Optimizer]) -> Learner:
    (comm,) = run_threads(1, lambda comm: comm)
    return Learner(comm, mlp(), make)


# ---- optimisers with hooks, with another step, with a past ---------------------------------------------------------------


def clamp(optimizer: Optimizer) -> None:
    with torch.no_grad():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.clamp_(-0.3, 0.3)


def with_post_hook(model: nn.Module) -> Optimizer:
    made = heavy(model)
    made.register_step_post_hook(lambda optimizer, *_: clamp(optimizer))
    return made


def replacing_values(model: nn.Module) -> Optimizer:
    """After each step the values of all parameters are other tensors."""
    made = heavy(model)

    def replace(*_: Any) -> None:
        for parameter in model.parameters():
            parameter.data = parameter.data.clamp(-0.3, 0.3)

    made.register_step_post_hook(replace)
    return made


def with_pre_hook(model: nn.Module) -> Optimizer:
    made = heavy(model)
    made.register_step_pre_hook(lambda optimizer, *_: clamp(optimizer))
    return made


def with_another_step(model: nn.Module) -> Optimizer:
    made = heavy(model)
    usual = made.step

    def step(*arguments: Any) -> None:
        usual(*arguments)
        clamp(made)

    made.step = step  # type: ignore[assignment,method-assign]
    return made


def trained(model: nn.Module, make: Callable[[nn.Module], Optimizer]) -> Optimizer:
    """An optimiser of the model whose state comes from the steps of another model."""
    other = deepcopy(model)
    before, made = make(other), make(model)
    for x, y in steps()[:3]:
        before.zero_grad()
        mean_square(other, (torch.as_tensor(x), torch.as_tensor(y))).backward()  # type: ignore[no-untyped-call]
        before.step()
    made.load_state_dict(before.state_dict())
    return made


OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "post hook": with_post_hook,
    "pre hook": with_pre_hook,
    "other values": replacing_values,
    "another step": with_another_step,
    "momentum": lambda model: trained(model, heavy),
    "Adam's state": lambda model: trained(model, lambda net: Adam(net.parameters(), lr=0.01)),
    "Adagrad's state": lambda model: trained(model, lambda net: Adagrad(net.parameters(), lr=0.01)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@WORKERS
def test_hooks_steps_and_loaded_states_of_optimisers_count_as_in_plain_torch(name: str, num_workers: int) -> None:
    make = OPTIMIZERS[name]
    expected = plain(mlp(), make, steps(), mean_square)
    for found in train(task_of(optimizer=lambda model: make(model)), num_workers):
        assert_same(found.weights, expected)


@pytest.fixture
def counted() -> Iterator[list[Optimizer]]:
    """The optimisers after whose steps a hook of all optimisers was called."""
    found: list[Optimizer] = []
    handle = register_optimizer_step_post_hook(lambda optimizer, *_: found.append(optimizer))
    yield found
    handle.remove()


def test_a_hook_of_all_optimisers_is_called_with_that_of_the_user(counted: list[Optimizer]) -> None:
    learner = one_learner(heavy)
    learner.step((steps()[0],))
    assert counted == [learner.optimizer]


def test_a_hook_that_comes_between_two_steps_is_called_and_the_steps_stay_those_of_plain_torch() -> None:
    learner, model = one_learner(heavy), mlp()
    optimizer = heavy(model)
    assert learner.part.running is not learner.optimizer, "it begins with the whole vector"
    for number, (x, y) in enumerate(steps()):
        if number == 2:
            for one in (learner.optimizer, optimizer):
                one.register_step_post_hook(lambda self, *_: clamp(self))
        learner.step(((x, y),))
        optimizer.zero_grad()
        mean_square(model, (torch.as_tensor(x), torch.as_tensor(y))).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert_same(weights_of(learner.adapter.model), weights_of(model))


@pytest.mark.parametrize("cls", [SGD, Adagrad])
def test_new_optimisers_are_still_run_on_the_whole_vector(cls: Any) -> None:
    """Also with a scheduler of torch, whose own `step` only counts, and with the state that Adagrad is made with."""

    def make(model: nn.Module) -> Optimizer:
        made: Optimizer = cls(model.parameters(), lr=0.1)
        StepLR(made, 5)
        return made

    learner = one_learner(make)
    assert learner.part.running is not learner.optimizer


# ---- losses that are computed before an update ---------------------------------------------------------------------------


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = mlp(1), nn.Linear(3, 3).double()


def retaining(self: un.OwnStep, batch: Any) -> None:
    x, y = batch
    model: Any = self.model
    inner = model.first(x)
    loss = ((model.second(inner) - y) ** 2).mean(1)
    self.minimise(((model.second(inner.detach()) - y) ** 2).mean(1), "second")
    self.minimise(loss, "first")


def test_a_loss_that_was_computed_before_an_update_is_refused_as_plain_torch_raises() -> None:
    model: Any = Pair()
    optimizer = SGD(model.second.parameters(), lr=0.1)
    x, y = map(torch.as_tensor, steps()[0])
    inner = model.first(x)
    loss = F.mse_loss(model.second(inner), y)
    loss.backward(retain_graph=True, inputs=list(model.second.parameters()))  # type: ignore[no-untyped-call]
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()  # type: ignore[no-untyped-call]
    with pytest.raises(UsageError, match=r"minimise\(\.\.\., 'first'\) was computed with weights that an earlier minimise"):
        train(task_of(Pair, {"first": "sgd", "second": "sgd"}, step=retaining, loss=None))


# ---- weights that are there before the optimiser -------------------------------------------------------------------------


class Lookahead(SGD):
    """After every second step it goes half of the way from the weights that it remembers, the first of them those at its start."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.05)
        self.slow = [one.detach().clone() for group in self.param_groups for one in group["params"]]
        self.count = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        self.count += 1
        if self.count % 2 == 0:
            for slow, fast in zip(self.slow, self.param_groups[0]["params"], strict=True):
                slow.lerp_(fast, 0.5)
                fast.copy_(slow)


def test_an_optimiser_that_keeps_the_weights_is_made_with_those_of_init_from(tmp_path: Path) -> None:
    given = mlp(seed=7)
    save_file(given.state_dict(), tmp_path / "given.safetensors")
    config = TrainConfig("", out=str(tmp_path / "run"), init_from=str(tmp_path / "given.safetensors"))
    with single_process_communicator() as comm:
        execute(config, comm, task=task_of(optimizer=Lookahead, name="lookahead"))
    expected = plain(given, lambda model: Lookahead(model.parameters()), steps(), mean_square)
    assert_same(load_file(tmp_path / "run" / "weights.safetensors"), expected)


# ---- what depends on the workers -----------------------------------------------------------------------------------------


def with_layer(layer: nn.Module) -> nn.Sequential:
    first, between, last = mlp().children()
    return nn.Sequential(first, between, layer, last).double()


DEPEND: dict[str, tuple[Callable[[], nn.Module], bool, bool]] = {
    "batch-norm": (lambda: with_layer(nn.BatchNorm1d(6)), True, True),
    "dropout": (lambda: with_layer(nn.Dropout(0.5)), True, False),
    "neither": (lambda: with_layer(nn.LayerNorm(6)), False, False),
}


@pytest.mark.parametrize("name", DEPEND)
def test_what_a_run_says_of_other_workers_and_of_micro_batches_is_true(name: str) -> None:
    make, on_workers, in_micro_batches = DEPEND[name]
    task = task_of(make, global_batch=7)
    assert effect_of_workers(make()).startswith("differ") == on_workers
    assert bool(accumulate_note(make(), 2)) == in_micro_batches
    (alone,), (first, _), (in_parts,) = train(task), train(task, 2), train(task_of(make, global_batch=7, accumulate=2))
    assert same(alone.weights, first.weights) != on_workers
    if name != "dropout":  # whose masks are of the micro-batches, as the documentation says
        assert same(alone.weights, in_parts.weights) != in_micro_batches


def same(one: Weights, other: Weights) -> bool:
    return all(torch.allclose(one[name], other[name], rtol=1e-9, atol=1e-12) for name in one)
