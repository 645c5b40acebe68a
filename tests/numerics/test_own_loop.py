"""A loop of one's own on several workers makes the updates that it makes on one: clipped, with closures, schedules and scaled
losses; what would differ between workers is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import LBFGS, SGD, Adam, Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR, ReduceLROnPlateau, StepLR

from tests.numerics.learning import Weights, assert_same, part_of, plain, weights_of
from unisono.comm.base import Communicator
from unisono.errors import UsageError
from unisono.own_loop import DistributedOptimizer
from unisono.testing.thread_communicator import run_threads

SIZES = (5, 7, 2, 4)
"""Samples of each step: uneven parts, and one worker of three without a sample."""
WORKERS = pytest.mark.parametrize("num_workers", [1, 3])


def model() -> nn.Module:
    made = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    draw = np.random.default_rng(1)
    for one in made.parameters():
        one.data = torch.as_tensor(draw.normal(size=tuple(one.shape)))
    return made


def batches() -> list[tuple[Any, Any]]:
    draw = np.random.default_rng(2)
    return [(draw.normal(size=(size, 4)), draw.normal(size=(size, 3))) for size in SIZES]


def mean_square(net: nn.Module, batch: Any) -> Tensor:
    return F.mse_loss(net(batch[0]), batch[1])


def heavy(net: nn.Module) -> Optimizer:
    return SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)


def backward(net: nn.Module, batch: Any) -> None:
    mean_square(net, batch).backward()  # type: ignore[no-untyped-call]


def parts(comm: Communicator, of: list[tuple[Any, Any]] | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    for batch in batches() if of is None else of:
        x, y = part_of(batch, comm.size, comm.rank)
        yield torch.as_tensor(x), torch.as_tensor(y)


def loop(num_workers: int, make: Callable[[nn.Module], Optimizer], update: Callable[..., object]) -> list[Weights]:
    """The weights by rank. `update(optimizer, net, batch)` is what the loop does after `zero_grad` and `backward`."""

    def body(comm: Communicator) -> Weights:
        net = model()
        optimizer = DistributedOptimizer(make(net), net, comm)
        for batch in parts(comm):
            optimizer.zero_grad()
            if len(batch[0]):
                backward(net, batch)
            update(optimizer, net, batch)
        return weights_of(net)

    return run_threads(num_workers, body)


# ---- gradients that are changed before the update ------------------------------------------------------------------------


@WORKERS
@pytest.mark.parametrize("clip_norm", [1e-3, 0.5])
def test_gradients_that_are_clipped_after_synchronize_are_those_of_one_worker(clip_norm: float, num_workers: int) -> None:
    def update(optimizer: DistributedOptimizer, net: nn.Module, batch: Any) -> None:
        optimizer.synchronize(num_samples=len(batch[0]))
        nn.utils.clip_grad_norm_(net.parameters(), clip_norm)
        optimizer.step()

    expected = plain(model(), heavy, batches(), mean_square, clip_norm)
    for found in loop(num_workers, heavy, update):
        assert_same(found, expected)


def clip(net: nn.Module) -> None:
    nn.utils.clip_grad_norm_(net.parameters(), 0.5)


def clip_values(net: nn.Module) -> None:
    nn.utils.clip_grad_value_(net.parameters(), 0.5)


def replace_one(net: nn.Module) -> None:
    one = next(net.parameters())
    assert one.grad is not None
    one.grad = one.grad.clamp(-1.0, 1.0)


@pytest.mark.parametrize("change", [clip, clip_values, replace_one])
def test_gradients_that_are_changed_before_the_sum_are_refused(change: Callable[[nn.Module], None]) -> None:
    """Each worker would clip its own part, with another factor."""

    def update(optimizer: DistributedOptimizer, net: nn.Module, batch: Any) -> None:
        change(net)
        optimizer.step(num_samples=len(batch[0]))

    with pytest.raises(UsageError, match=r"gradients were changed .*; call optimizer\.synchronize\(num_samples=len\(x\)\) before"):
        loop(2, heavy, update)


def assign(net: nn.Module, batch: Any) -> None:
    """The gradients that `torch.autograd.grad` returns, which are no backward pass."""
    for one, gradient in zip(net.parameters(), torch.autograd.grad(mean_square(net, batch), list(net.parameters())), strict=True):
        one.grad = gradient


@WORKERS
@pytest.mark.parametrize("drops", [False, True])
def test_gradients_of_autograd_grad_that_are_assigned_give_the_steps_of_plain_torch(drops: bool, num_workers: int) -> None:
    def body(comm: Communicator) -> Weights:
        net = model()
        optimizer = DistributedOptimizer(heavy(net), net, comm)
        for batch in parts(comm):
            (net if drops else optimizer).zero_grad()
            if len(batch[0]):
                assign(net, batch)
            optimizer.step(num_samples=len(batch[0]))
        return weights_of(net)

    expected = plain(model(), heavy, batches(), mean_square)
    for found in run_threads(num_workers, body):
        assert_same(found, expected)


def test_an_assigned_gradient_of_one_parameter_leaves_the_others_unused_as_in_plain_torch() -> None:
    def body(comm: Communicator) -> Weights:
        net = model()
        optimizer = DistributedOptimizer(heavy(net), net, comm)
        for batch in parts(comm):
            optimizer.zero_grad()
            if len(batch[0]):
                first = next(net.parameters())
                (first.grad,) = torch.autograd.grad(mean_square(net, batch), first)
            optimizer.step(num_samples=len(batch[0]))
        return weights_of(net)

    expected = model()
    first, *rest = expected.parameters()
    optimizer = heavy(expected)
    for x, y in batches():
        optimizer.zero_grad()
        (first.grad,) = torch.autograd.grad(mean_square(expected, (torch.as_tensor(x), torch.as_tensor(y))), first)
        optimizer.step()
    assert all(torch.equal(one, other) for one, other in zip(rest, list(model().parameters())[1:], strict=True))
    for found in run_threads(2, body):
        assert_same(found, weights_of(expected))


@WORKERS
def test_gradients_that_a_mask_replaces_after_synchronize_are_those_of_plain_torch(num_workers: int) -> None:
    def masked(net: nn.Module) -> None:
        for one in net.parameters():
            assert one.grad is not None
            one.grad = one.grad * (one.detach() > 0)

    def update(optimizer: DistributedOptimizer, net: nn.Module, batch: Any) -> None:
        optimizer.synchronize(num_samples=len(batch[0]))
        masked(net)
        optimizer.step()

    expected = model()
    optimizer = heavy(expected)
    for x, y in batches():
        optimizer.zero_grad()
        backward(expected, (torch.as_tensor(x), torch.as_tensor(y)))
        masked(expected)
        optimizer.step()
    for found in loop(num_workers, heavy, update):
        assert_same(found, weights_of(expected))


def through_data(net: nn.Module, gradients: Any) -> None:
    for one, gradient in zip(net.parameters(), gradients, strict=True):
        assert one.grad is not None
        one.grad.data.copy_(gradient)


def in_place(net: nn.Module, gradients: Any) -> None:
    for one, gradient in zip(net.parameters(), gradients, strict=True):
        assert one.grad is not None
        one.grad.copy_(gradient)


@pytest.mark.parametrize("write", [through_data, in_place])
def test_gradients_that_are_written_in_place_without_a_pass_are_refused(write: Callable[..., None]) -> None:
    """Nothing counts them as used, so that nothing would ever move."""

    def body(comm: Communicator) -> None:
        net = model()
        optimizer = DistributedOptimizer(heavy(net), net, comm)
        batch = next(parts(comm))
        optimizer.zero_grad()
        write(net, torch.autograd.grad(mean_square(net, batch), list(net.parameters())))
        optimizer.step(num_samples=len(batch[0]))

    with pytest.raises(UsageError, match=r"without a backward pass.*; assign those .* \(parameter\.grad = gradient\)"):
        run_threads(2, body)


def test_gradients_that_are_added_up_over_several_passes_are_no_change() -> None:
    def update(optimizer: DistributedOptimizer, net: nn.Module, batch: Any) -> None:
        if len(batch[0]):
            backward(net, batch)
        optimizer.step(num_samples=len(batch[0]))

    expected = plain(model(), heavy, batches(), lambda net, batch: 2 * mean_square(net, batch))
    for found in loop(3, heavy, update):
        assert_same(found, expected)


# ---- the number of samples -----------------------------------------------------------------------------------------------


def test_step_needs_the_number_of_samples() -> None:
    """A mean of the means of uneven parts is not the mean."""
    calls: list[tuple[Callable[[Any], object], str]] = [
        (lambda optimizer: optimizer.step(), r"step\(\) needs the number of samples .*; use step\(num_samples=len\(x\)\)"),
        (lambda optimizer: optimizer.step(lambda: 0.0), r"step\(\) needs the number of samples"),
        (lambda optimizer: optimizer.step(5), "closure must be a function; received 5"),
        (lambda optimizer: optimizer.step(num_samples=-1), "num_samples must be at least 0; received -1"),
        (lambda optimizer: optimizer.step(num_samples=0), "no worker had a sample in this step"),
    ]
    for call, message in calls:
        with pytest.raises(UsageError, match=message):
            loop(1, heavy, lambda optimizer, *_, call=call: call(optimizer))


def test_samples_are_counted_once() -> None:
    def twice(optimizer: DistributedOptimizer, _: nn.Module, batch: Any) -> None:
        optimizer.synchronize(len(batch[0]))
        optimizer.step(num_samples=len(batch[0]))

    def after_another_pass(optimizer: DistributedOptimizer, net: nn.Module, batch: Any) -> None:
        optimizer.synchronize(len(batch[0]))
        backward(net, batch)
        optimizer.step()

    with pytest.raises(UsageError, match=r"synchronised already; call step\(\) without num_samples"):
        loop(1, heavy, twice)
    with pytest.raises(UsageError, match=r"step\(\) needs the number of samples"):
        loop(1, heavy, after_another_pass)


def test_parameters_that_come_later_are_refused() -> None:
    def added(optimizer: DistributedOptimizer, *_: Any) -> None:
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
        optimizer.step(num_samples=1)

    with pytest.raises(UsageError, match="parameters that were added or unfrozen after"):
        loop(1, heavy, added)


def test_one_parameter_unfrozen_and_another_one_frozen_is_refused() -> None:
    """In plain torch the one that learns now moves; here no vector has it."""

    def body(comm: Communicator) -> None:
        net = model()
        first, *_, last = net.parameters()
        last.requires_grad_(False)
        optimizer = DistributedOptimizer(heavy(net), net, comm)
        first.requires_grad_(False)
        last.requires_grad_(True)
        batch = next(parts(comm))
        backward(net, batch)
        optimizer.step(num_samples=len(batch[0]))

    with pytest.raises(UsageError, match="parameters that were added or unfrozen after"):
        run_threads(1, body)


def test_a_tie_through_memory_is_refused() -> None:
    def body(comm: Communicator) -> None:
        net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        net[1].weight.data = net[0].weight.data
        DistributedOptimizer(heavy(net), net, comm)

    with pytest.raises(UsageError, match=r"parameter 0\.weight and parameter 1\.weight share memory"):
        run_threads(1, body)


# ---- hooks and steps of the optimiser ------------------------------------------------------------------------------------


@WORKERS
def test_step_hooks_of_the_optimiser_are_called_as_in_plain_torch(num_workers: int) -> None:
    def clipping(net: nn.Module) -> Optimizer:
        made = heavy(net)
        made.register_step_post_hook(lambda *_: clip_weights(net))
        return made

    def clip_weights(net: nn.Module) -> None:
        with torch.no_grad():
            for one in net.parameters():
                one.clamp_(-0.5, 0.5)

    expected = plain(model(), clipping, batches(), mean_square)
    for found in loop(num_workers, clipping, lambda optimizer, _, batch: optimizer.step(num_samples=len(batch[0]))):
        assert_same(found, expected)


def test_a_step_that_was_put_into_the_optimiser_is_refused() -> None:
    """It would never be called; a scheduler's, which only counts, is none."""

    def patched(net: nn.Module) -> Optimizer:
        made = heavy(net)
        made.step = lambda *_: None  # type: ignore[assignment,method-assign]
        return made

    def scheduled(net: nn.Module) -> Optimizer:
        made = heavy(net)
        StepLR(made, 100)
        return made

    with pytest.raises(UsageError, match="the `step` of this optimizer object was replaced"):
        loop(1, patched, lambda *_: None)
    for found in loop(1, scheduled, lambda optimizer, _, batch: optimizer.step(num_samples=len(batch[0]))):
        assert_same(found, plain(model(), heavy, batches(), mean_square))


# ---- closures ------------------------------------------------------------------------------------------------------------


def lbfgs(net: nn.Module) -> Optimizer:
    return LBFGS(net.parameters(), lr=0.3, max_iter=4, line_search_fn="strong_wolfe")


@WORKERS
@pytest.mark.parametrize("make", [lbfgs, heavy])
def test_an_optimiser_with_a_closure_makes_the_steps_of_one_worker(make: Any, num_workers: int) -> None:
    """Its line search decides by the loss, which must be that of all workers."""

    def body(comm: Communicator) -> tuple[Weights, list[float]]:
        net, losses = model(), []
        optimizer = DistributedOptimizer(make(net), net, comm)
        for batch in parts(comm):

            def closure(batch: Any = batch) -> Tensor | None:
                optimizer.zero_grad()
                if not len(batch[0]):
                    return None
                loss = mean_square(net, batch)
                loss.backward()  # type: ignore[no-untyped-call]
                return loss

            losses.append(float(optimizer.step(closure, num_samples=len(batch[0]))))
        return weights_of(net), losses

    expected, first = model(), []
    optimizer = make(expected)
    for x, y in batches():

        def closure(batch: Any = (torch.as_tensor(x), torch.as_tensor(y))) -> Any:  # noqa: B008 - of this step
            optimizer.zero_grad()
            loss = mean_square(expected, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss.detach()

        first.append(float(optimizer.step(closure)))
    for weights, losses in run_threads(num_workers, body):
        assert_same(weights, weights_of(expected), rtol=1e-9)
        np.testing.assert_allclose(losses, first, rtol=1e-9)


def test_a_closure_must_return_the_loss() -> None:
    with pytest.raises(UsageError, match=r"the closure of step\(\) must return the loss"):
        loop(1, heavy, lambda optimizer, *_: optimizer.step(lambda: None, num_samples=1))


# ---- what programs of torch expect of an optimiser -----------------------------------------------------------------------

SCHEDULES: dict[str, Callable[[Optimizer], LRScheduler]] = {
    "StepLR": lambda optimizer: StepLR(optimizer, 2, gamma=0.3),
    "OneCycleLR, which also sets the momentum": lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=9),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedulers_take_it(name: str) -> None:
    def body(comm: Communicator) -> Weights:
        net = model()
        optimizer = DistributedOptimizer(heavy(net), net, comm)
        assert {SGD, DistributedOptimizer, Optimizer} <= set(type(optimizer).__mro__)
        schedule = SCHEDULES[name](optimizer)
        for batch in parts(comm):
            optimizer.zero_grad()
            if len(batch[0]):
                backward(net, batch)
            optimizer.step(num_samples=len(batch[0]))
            schedule.step()
        return weights_of(net)

    expected = model()
    optimizer = heavy(expected)
    schedule = SCHEDULES[name](optimizer)
    for x, y in batches():
        optimizer.zero_grad()
        backward(expected, (torch.as_tensor(x), torch.as_tensor(y)))
        optimizer.step()
        schedule.step()
    for found in run_threads(3, body):
        assert_same(found, weights_of(expected))


def test_a_loaded_state_reaches_the_optimiser_inside_and_its_scheduler() -> None:
    def body(comm: Communicator) -> None:
        net = model()
        inside = heavy(net)
        schedule = ReduceLROnPlateau(inside)
        optimizer = DistributedOptimizer(inside, net, comm)
        assert optimizer.optimizer is inside
        trained = deepcopy(net)
        plain_optimizer = heavy(trained)
        backward(trained, next(parts(comm)))
        plain_optimizer.step()
        plain_optimizer.param_groups[0]["lr"] = 0.7
        optimizer.load_state_dict(plain_optimizer.state_dict())
        (one, *_), (other, *_) = inside.state.values(), plain_optimizer.state.values()
        assert torch.equal(one["momentum_buffer"], other["momentum_buffer"])
        assert schedule.optimizer.param_groups[0] is optimizer.param_groups[0] and inside.param_groups[0]["lr"] == 0.7
        assert optimizer.state_dict()["param_groups"] == plain_optimizer.state_dict()["param_groups"]

    run_threads(1, body)


def test_what_is_no_plain_optimiser_is_refused() -> None:
    def body(comm: Communicator) -> None:
        net = model()
        with pytest.raises(UsageError, match=r"must be a torch\.optim\.Optimizer \(un\.DistributedOptimizer\); received a list"):
            DistributedOptimizer([net], net, comm)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="received one that is distributed already"):
            DistributedOptimizer(DistributedOptimizer(heavy(net), net, comm), net, comm)
        with pytest.raises(TypeError, match="cannot be copied"):
            deepcopy(DistributedOptimizer(heavy(net), net, comm))

    run_threads(1, body)


# ---- scaled losses -------------------------------------------------------------------------------------------------------


def overflowing() -> list[tuple[Any, Any]]:
    """In the second step the gradient of the last worker alone overflows."""
    found = batches()
    found[1][0][-1] = np.inf
    return found


def scaled_loop(optimizer: Optimizer, net: nn.Module, of: Iterator[Any], synchronize: bool) -> float:
    """Makes the steps of these batches with a `GradScaler`; returns its scale."""
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    for batch in of:
        optimizer.zero_grad()
        if len(batch[0]):
            scaler.scale(mean_square(net, batch)).backward()  # type: ignore[no-untyped-call]
        if synchronize:
            assert isinstance(optimizer, DistributedOptimizer)
            optimizer.synchronize(num_samples=len(batch[0]))
        options = {} if synchronize or not isinstance(optimizer, DistributedOptimizer) else {"num_samples": len(batch[0])}
        scaler.step(optimizer, **options)
        scaler.update()
    return float(scaler.get_scale())


@pytest.mark.parametrize("fused", [False, True])
def test_an_overflow_on_one_worker_leaves_out_the_step_on_all(fused: bool) -> None:
    """Each worker would skip, and pair its next sum with another step of the others."""

    def make(net: nn.Module) -> Optimizer:
        return Adam(net.parameters(), lr=0.05, fused=fused)

    def body(comm: Communicator) -> tuple[Weights, float]:
        net = model()
        scale = scaled_loop(DistributedOptimizer(make(net), net, comm), net, parts(comm, overflowing()), synchronize=True)
        return weights_of(net), scale

    expected = model()
    all_samples = ((torch.as_tensor(x), torch.as_tensor(y)) for x, y in overflowing())
    scale = scaled_loop(make(expected), expected, all_samples, synchronize=False)
    for weights, its_scale in run_threads(3, body):
        assert_same(weights, weights_of(expected))
        assert its_scale == scale


@pytest.mark.parametrize("fused", [False, True])
def test_a_grad_scaler_that_decides_on_each_worker_alone_is_refused(fused: bool) -> None:
    def body(comm: Communicator) -> None:
        net = model()
        optimizer = DistributedOptimizer(Adam(net.parameters(), fused=fused), net, comm)
        scaled_loop(optimizer, net, parts(comm, overflowing()), synchronize=False)

    with pytest.raises(UsageError, match=r"a GradScaler, say.*; call optimizer\.synchronize"):
        run_threads(2, body)
