"""horovod.torch: optimisers, equal replicas, batch normalisation. What N ranks learn is compared with one process on all data."""
# mypy: disable-error-code="no-untyped-call,arg-type,union-attr,index,assignment,no-any-return,misc,call-overload,list-item"
# Gradients may be None to the type checker, and some arguments are wrong on purpose.

from __future__ import annotations

import copy
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import unisono.horovod.torch as hvd

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.ranks.programs.horovod_checks import checks_of, raises, run

warnings.simplefilter("error")

STEPS, ROWS = 4, 6
Make = Callable[[Any], torch.optim.Optimizer]


def model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def data(step: int, rank: int) -> torch.Tensor:
    return torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(100 * step + rank), dtype=torch.float64)


def loss_of(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return net(x).square().mean()


def alone(make: Make = sgd, passes: int = 1) -> nn.Module:
    """One process, all data of each step."""
    net = model()
    optimizer = make(net.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(passes):
            x = torch.cat([data(step * passes + part, rank) for rank in range(hvd.size())])
            loss_of(net, x).backward()
        optimizer.step()
    return net


def same(net: nn.Module, other: nn.Module, rtol: float = 1e-10) -> None:
    for (name, one), two in zip(net.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.allclose(one, two, rtol=rtol, atol=rtol), (name, (one - two).abs().max())


def trained(make: Make = sgd, passes: int = 1, **options: Any) -> nn.Module:
    net = model()
    optimizer = hvd.DistributedOptimizer(make(net.parameters()), net.named_parameters(), backward_passes_per_step=passes, **options)
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(passes):
            loss_of(net, data(step * passes + part, hvd.rank())).backward()
        optimizer.step()
    return net


def check_as_one_process() -> None:
    for make in (sgd, lambda params: torch.optim.Adam(params, lr=0.01), lambda params: torch.optim.AdamW(params, lr=0.01)):
        same(trained(make), alone(make))


def check_options() -> None:
    same(trained(passes=3), alone(passes=3))
    same(trained(groups=2), alone())
    same(trained(groups=1), alone())
    same(trained(gradient_predivide_factor=2.0), alone())
    same(trained(compression=hvd.Compression.fp16), alone(), rtol=2e-2)
    same(trained(groups=2, compression=hvd.Compression.fp16), alone(), rtol=2e-2)
    same(trained(lambda params: torch.optim.SGD(params, lr=0.1 / hvd.size(), momentum=0.9), op=hvd.Sum), alone())
    net = model()
    chosen = [[net[2].weight, net[0].bias]]
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), groups=chosen)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(net, data(step, hvd.rank())).backward()
        optimizer.step()
    same(net, alone())
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        hvd.DistributedOptimizer(sgd(net.parameters()), num_groups=2)
    assert any("num_groups" in str(one.message) for one in seen)


def check_class_and_scheduler() -> None:
    net = model()
    plain = sgd(net.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(plain, 1, gamma=0.5)  # made before, as some programs do
    optimizer = hvd.DistributedOptimizer(plain, net.named_parameters())
    assert isinstance(optimizer, torch.optim.SGD)
    assert type(optimizer).__name__ == "SGD"
    loss_of(net, data(0, hvd.rank())).backward()
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.05
    after = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    optimizer.step()
    after.step()
    assert optimizer.param_groups[0]["lr"] == 0.025
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step()


def check_by_hand() -> None:
    net = model()
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(net, data(step, hvd.rank())).backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1e9)
        with optimizer.skip_synchronize():
            optimizer.step()
    same(net, alone())
    loss_of(net, data(0, hvd.rank())).backward()
    optimizer.synchronize()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        optimizer.step()
    assert any("optimizer.step() called without optimizer.skip_synchronize()" in str(one.message) for one in seen)


def check_a_closure() -> None:
    net = model()
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters())
    for step in range(STEPS):

        def closure(step: int = step) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(net, data(step, hvd.rank()))
            loss.backward()
            return loss

        optimizer.step(closure)
    same(net, alone())


def check_mistakes() -> None:
    net = model()
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters())
    loss_of(net, data(0, hvd.rank())).backward()
    if hvd.size() > 1:
        with raises(AssertionError, "backward_passes_per_step"):
            loss_of(net, data(0, hvd.rank())).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    assert all(float(one.grad.abs().sum()) == 0.0 for one in net.parameters())
    named = list(net.named_parameters())
    with raises(ValueError, "duplicate names"):
        hvd.DistributedOptimizer(sgd(net.parameters()), [*named, (named[0][0], torch.zeros(1))])
    with raises(ValueError, "lacks"):
        hvd.DistributedOptimizer(sgd(net.parameters()), named[1:])
    with raises(ValueError, "pairs"):
        hvd.DistributedOptimizer(sgd(net.parameters()), net.parameters())
    with raises(ValueError, "groups"):
        hvd.DistributedOptimizer(sgd(net.parameters()), groups="all")
    with raises(ValueError, "predivide"):
        hvd.DistributedOptimizer(sgd(net.parameters()), op=hvd.Sum, gradient_predivide_factor=2.0)
    with raises(ValueError, "already"):
        hvd.DistributedOptimizer(optimizer)
    with raises(ValueError, "backward_passes_per_step"):
        hvd.DistributedOptimizer(sgd(net.parameters()), backward_passes_per_step=0)
    with raises(ValueError, "backward_passes_per_step"):
        optimizer.set_backward_passes_per_step(0)
    with raises(ValueError, "op must be"):
        hvd.DistributedOptimizer(sgd(net.parameters()), op=hvd.Max)
    with raises(ValueError, "leave groups and sparse_as_dense out"):
        hvd.DistributedOptimizer(sgd(net.parameters()), op=hvd.Adasum, groups=2)
    with raises(TypeError, "state_dict"):
        copy.deepcopy(optimizer)
    with raises(TypeError, "state_dict"):
        pickle.dumps(optimizer)


def check_two_models_with_the_same_names() -> None:
    nets = [model(), model()]
    optimizers = [hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters()) for net in nets]
    for step in range(STEPS):
        for net, optimizer in zip(nets, optimizers, strict=True):
            optimizer.zero_grad()
            loss_of(net, data(step, hvd.rank())).backward()
        for optimizer in reversed(optimizers):
            optimizer.step()
    for net in nets:
        same(net, alone())


def check_wrapped_again() -> None:
    """The one before is gone, and so must be its hooks."""
    net = model()
    for _ in range(3):
        optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters())
        loss_of(net, data(0, hvd.rank())).backward()
        del optimizer
        hvd.barrier()  # what it started is done
        net.zero_grad()
    net = model()
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters())
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(net, data(step, hvd.rank())).backward()
        optimizer.step()
    same(net, alone())


def check_gradients_that_are_dropped_on_their_way() -> None:
    """What has been sent cannot be called back: others may have it already, so all use it."""
    net, other = model(), model()
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters())
    plain = sgd(other.parameters())
    for step in range(2):
        optimizer.zero_grad()
        loss_of(net, data(step, hvd.rank())).backward()
        if step and hvd.rank() == 1:  # before, nobody knows in which form the others send, so nothing travels
            net.zero_grad(set_to_none=True)
        optimizer.step()
        plain.zero_grad()
        loss_of(other, torch.cat([data(step, rank) for rank in range(hvd.size())])).backward()
        plain.step()
    same(net, other)


class Branches(nn.Module):
    """Two parameters, the first of which a batch need not use."""

    def __init__(self) -> None:
        super().__init__()
        self.maybe, self.always, self.too = (nn.Parameter(torch.zeros(2, dtype=torch.float64)) for _ in range(3))

    def forward(self, x: float, uses_all: bool = True) -> torch.Tensor:
        return ((self.always + self.too) * x).sum() + ((self.maybe * x).sum() if uses_all else 0.0)


def check_a_batch_that_all_ranks_drop() -> None:
    """Its gradients are gone for all, whichever of them a rank had, and however they travelled."""
    expected = torch.full((2,), (hvd.size() + 1) / 2, dtype=torch.float64)
    for groups in (None, 1, 2):
        for by_optimizer in (True, False):
            for uses_all in (True, hvd.rank() == 0):
                net = Branches()
                plain = torch.optim.SGD(net.parameters(), lr=1.0)
                optimizer = hvd.DistributedOptimizer(plain, net.named_parameters(), groups=groups)
                drop = optimizer.zero_grad if by_optimizer else net.zero_grad
                net(1.0).backward()
                optimizer.step()  # since then it is known in which form they travel
                optimizer.zero_grad()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # that they were reduced for nothing
                    net(1000.0, uses_all).backward()
                    drop()
                for _ in range(2):
                    net(hvd.rank() + 1.0).backward()
                    optimizer.step()
                    for name, one in net.named_parameters():
                        assert torch.equal(one.grad, expected), (groups, by_optimizer, uses_all, name, one.grad)
                    optimizer.zero_grad()
                everybody = hvd.allgather_object([one.tolist() for one in net.parameters()])
                assert all(replica == everybody[0] for replica in everybody), everybody


def check_zero_grad_is_that_of_the_class() -> None:
    class Old(torch.optim.SGD):
        def zero_grad(self) -> None:  # type: ignore[override]
            super().zero_grad(set_to_none=False)

    net = model()
    optimizer = hvd.DistributedOptimizer(Old(net.parameters(), lr=0.1), net.named_parameters())
    loss_of(net, data(0, hvd.rank())).backward()
    optimizer.step()
    optimizer.zero_grad()
    assert all(one.grad is not None and not one.grad.any() for one in net.parameters())


def check_gradients_that_only_some_ranks_have() -> None:
    net = nn.ModuleList([nn.Linear(2, 1, bias=False).double() for _ in range(2)])
    hvd.broadcast_parameters(net.state_dict(), 0)
    before = [one.detach().clone() for one in net.parameters()]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=1.0), net.named_parameters())
    net[hvd.rank() % 2](torch.ones(1, 2, dtype=torch.float64)).sum().backward()
    optimizer.step()
    for index, (one, old) in enumerate(zip(net.parameters(), before, strict=True)):
        share = sum(rank % 2 == index for rank in range(hvd.size())) / hvd.size()
        assert torch.allclose(old - one, torch.full((1, 2), share, dtype=torch.float64))


def check_sparse_gradients() -> None:
    for dense in (False, True):
        table = nn.Embedding(6, 2, sparse=True)
        nn.init.ones_(table.weight)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters(), sparse_as_dense=dense
        )
        for _ in range(2):
            optimizer.zero_grad()
            table(torch.tensor([0, hvd.rank() + 1])).sum().backward()
            optimizer.step()
        expected = torch.ones(6, 2)
        expected[0] -= 2.0
        expected[1 : hvd.size() + 1] -= 2.0 / hvd.size()
        assert table.weight.grad.is_sparse
        assert torch.allclose(table.weight, expected)


def check_adasum_steps() -> None:
    net = model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters(), op=hvd.Adasum)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(net, data(step, 0)).backward()  # the same data: the mean of equal steps is the step
        optimizer.step()
    plain = model()
    local = torch.optim.SGD(plain.parameters(), lr=0.1)
    for step in range(STEPS):
        local.zero_grad()
        loss_of(plain, data(step, 0)).backward()
        local.step()
    same(net, plain)
    if hvd.size() > 1:
        with raises(AssertionError, "skip_synchronize"), optimizer.skip_synchronize():
            pass


def check_process_set_of_an_optimizer() -> None:
    if hvd.size() < 3:
        return
    pair = hvd.add_process_set([0, 1])
    net = model()
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters(), process_set=pair)
    loss_of(net, data(0, hvd.rank())).backward()
    optimizer.step()
    hashes = hvd.allgather_object(float(net[0].weight.detach().sum()))
    assert hashes[0] == hashes[1] != hashes[2]
    hvd.remove_process_set(pair)


def check_broadcast_parameters() -> None:
    root = hvd.size() - 1
    net = nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3)).to(memory_format=torch.channels_last)
    nn.init.constant_(net[0].weight, float(hvd.rank()))
    net[1].num_batches_tracked.fill_(hvd.rank() + 7)
    hvd.broadcast_parameters(net.state_dict(), root_rank=root)
    assert bool((net[0].weight == root).all())
    assert int(net[1].num_batches_tracked) == root + 7
    nn.init.constant_(net[0].weight, float(hvd.rank()))
    hvd.broadcast_parameters(net.named_parameters(), root_rank=0)
    assert bool((net[0].weight == 0).all())
    with raises(ValueError, "state_dict"):
        hvd.broadcast_parameters(7, root_rank=0)
    nn.init.constant_(net[0].weight, float(hvd.rank()))
    hvd.broadcast_parameters(list(net.parameters()), root_rank=root)
    assert bool((net[0].weight == root).all())
    with raises(ValueError, "pairs"):
        hvd.broadcast_parameters([1, 2], root_rank=0)


def makers() -> Iterator[Make]:
    for name in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta"):
        kind, options = getattr(torch.optim, name), {"momentum": 0.9} if name == "SGD" else {}
        yield lambda params, kind=kind, options=options: kind(params, lr=0.01 * (hvd.rank() + 1), **options)


def check_broadcast_optimizer_state() -> None:
    for make in makers():
        for begun in ("all", "root", "none"):
            net = model()
            optimizer = make(net.parameters())
            if begun == "all" or (begun == "root" and hvd.rank() == 0):
                loss_of(net, data(0, hvd.rank())).backward()
                optimizer.step()
            wrapped = hvd.DistributedOptimizer(optimizer, net.named_parameters())
            hvd.broadcast_optimizer_state(wrapped, root_rank=0)
            hvd.broadcast_parameters(net.state_dict(), root_rank=0)
            assert wrapped.param_groups[0]["lr"] == 0.01
            assert bool(wrapped.state) == (begun != "none" or type(optimizer).__name__ == "Adagrad")
            loss_of(net, data(1, hvd.rank())).backward()
            wrapped.step()
            states = hvd.allgather_object(
                [
                    value.tolist() if isinstance(value, torch.Tensor) else value
                    for state in wrapped.state.values()
                    for value in state.values()
                ]
            )
            assert all(state == states[0] for state in states)
    net = model()  # of float64, for which NAdam keeps a product in float32
    optimizer = torch.optim.NAdam(net.parameters(), lr=0.01)
    loss_of(net, data(0, 0)).backward()
    optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    types = hvd.allgather_object([str(value.dtype) for state in optimizer.state.values() for value in state.values()])
    assert all(of_rank == types[0] for of_rank in types), types
    with raises(ValueError, "LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(model().parameters()), root_rank=0)


def check_batch_normalisation() -> None:
    size, rank = hvd.size(), hvd.rank()
    for momentum in (0.1, None):
        for shape in ((5,), (5, 3, 2)):
            rows = [2 + other for other in range(size)]
            x = torch.randn(sum(rows), *shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 3 + 1
            weights = torch.randn(x.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
            plain = (nn.BatchNorm1d if len(shape) == 1 else nn.BatchNorm2d)(5, momentum=momentum).double()
            sync = hvd.SyncBatchNorm(5, momentum=momentum).double()
            everything = x.clone().requires_grad_()
            mine = slice(sum(rows[:rank]), sum(rows[: rank + 1]))
            part = x[mine].clone().requires_grad_()
            for _ in range(2):
                whole, own = plain(everything), sync(part)
            (whole * weights).sum().backward()
            (own * weights[mine]).sum().backward()
            assert torch.allclose(own, whole[mine])
            assert torch.allclose(part.grad, everything.grad[mine])
            for name in ("running_mean", "running_var", "num_batches_tracked"):
                assert torch.allclose(getattr(sync, name), getattr(plain, name)), name
            for one, two in ((sync.weight, plain.weight), (sync.bias, plain.bias)):
                assert torch.allclose(hvd.allreduce(one.grad, op=hvd.Sum), two.grad)
            assert torch.allclose(sync.eval()(part), plain.eval()(everything)[mine])
    with raises(ValueError, "batch and channels"):
        hvd.SyncBatchNorm(5)(torch.ones(5))


def check_batch_normalisation_without_weights() -> None:
    values = torch.randn(3 * hvd.size(), 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mine = values[hvd.rank() :: hvd.size()].clone().requires_grad_()
    everything = values.clone().requires_grad_()
    whole = nn.BatchNorm1d(2, affine=False).double()(everything)
    part = hvd.SyncBatchNorm(2, affine=False).double()(mine)
    assert torch.allclose(part, whole[hvd.rank() :: hvd.size()])
    whole.square().mul(torch.arange(2) + 1).sum().backward()
    part.square().mul(torch.arange(2) + 1).sum().backward()
    assert torch.allclose(mine.grad, everything.grad[hvd.rank() :: hvd.size()])


def check_passes_that_change() -> None:
    net = model()
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters())
    optimizer.set_backward_passes_per_step(2)
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(2):
            loss_of(net, data(2 * step + part, hvd.rank())).backward()
        optimizer.step()
    same(net, alone(passes=2))


if __name__ == "__main__":
    run(checks_of(globals()))
