"""horovod.torch: optimisers that meet late, are refused, grow, search along lines, and outlive their job."""
# mypy: disable-error-code="no-untyped-call,union-attr,index,arg-type,no-any-return,operator,call-overload"

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

import unisono.horovod.torch as hvd
from unisono.horovod._impl.job.process_state import PROCESS

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.ranks.programs.horovod_checks import checks_of, raises, run

warnings.simplefilter("error")


def line() -> nn.Module:
    net = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(net.weight)
    return net


def wrapped(net: nn.Module, **options: Any) -> Any:
    return hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=1.0), net.named_parameters(), **options)


def equal(net: nn.Module) -> bool:
    return len(set(map(str, hvd.allgather_object([one.tolist() for one in net.parameters()])))) == 1


def check_sums_of_optimizers_that_meet_late() -> None:
    net = line()
    net.weight.requires_grad_(False)
    first = wrapped(net, op=hvd.Sum)
    net.weight.requires_grad_(True)
    second = wrapped(net, op=hvd.Sum)
    for number, optimizer in enumerate((first, second, first, second)):
        net.zero_grad()
        net(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        assert float(net.weight.detach()) == -hvd.size() * (number + 1)


def check_an_optimizer_made_between_backward_and_step() -> None:
    for before, op in ((hvd.Sum, hvd.Sum), (hvd.Average, hvd.Sum), (hvd.Sum, hvd.Average)):
        net = nn.Sequential(line(), line())
        nn.init.ones_(net[1].weight)
        first = wrapped(net, op=before, groups=1)
        for _ in range(2):  # from the second on, gradients travel during the backward pass
            first.zero_grad()
            net(torch.ones(1, 1)).sum().backward()
            first.step()
        first.zero_grad()
        start = [one.detach().clone() for one in net.parameters()]
        own = [one.detach().clone() for one in torch.autograd.grad(net(torch.ones(1, 1)).sum(), list(net.parameters()))]
        net(torch.ones(1, 1)).sum().backward()
        second = wrapped(net, op=op)
        second.step()
        factor = hvd.size() if op == hvd.Sum else 1
        for one, begin, gradient in zip(net.parameters(), start, own, strict=True):
            assert torch.allclose(one, begin - factor * gradient)


def check_adasum_of_parameters_that_come_later() -> None:
    net, more = line(), line()
    optimizer = wrapped(net, op=hvd.Adasum)
    optimizer.add_param_group({"params": list(more.parameters())})
    (net(torch.ones(1, 1)) + more(torch.full((1, 1), hvd.rank() + 1.0))).sum().backward()
    optimizer.step()
    assert equal(more)
    assert float(more.weight.detach()) != 0.0


def check_a_line_search() -> None:
    """It decides by the loss, so all ranks must see the same one."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    plain = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=6, line_search_fn="strong_wolfe")
    optimizer = hvd.DistributedOptimizer(plain, net.named_parameters())
    generator = torch.Generator().manual_seed(hvd.rank())
    x = torch.randn(16, 3, generator=generator, dtype=torch.float64)
    y = (hvd.rank() + 1.0) * x.sum(1, keepdim=True)
    losses = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (net(x) - y).square().mean()
        loss.backward()
        return loss

    for _ in range(8):
        losses.append(optimizer.step(closure).item())
    assert losses[-1] < 0.5 * losses[0]
    assert len({tuple(each) for each in hvd.allgather_object(losses)}) == 1
    assert equal(net)


def check_one_that_was_refused_does_no_harm() -> None:
    net = line()
    try:
        wrapped(net, groups=-1)
    except ValueError as error:
        kept = error  # and with it all that its traceback holds
    optimizer = wrapped(net)
    net(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    assert float(net.weight.detach()) == -1.0
    assert "groups" in str(kept)


def check_loading_a_state_forgets_what_travels() -> None:
    net = line()
    optimizer = wrapped(net)
    before = len(PROCESS.handles._held)
    for _ in range(5):
        net.zero_grad()
        net(torch.ones(1, 1)).sum().backward()
        optimizer.load_state_dict(optimizer.state_dict())
    assert len(PROCESS.handles._held) == before
    net.zero_grad()
    net(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    assert float(net.weight.detach()) == -1.0


def check_batch_normalisation_without_memory() -> None:
    """It has no other statistics than those of the batch, in evaluation too."""
    layer = hvd.SyncBatchNorm(2, track_running_stats=False).double().eval()
    values = torch.randn(4 * hvd.size(), 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mine = values[hvd.rank() :: hvd.size()]
    whole = nn.BatchNorm1d(2, track_running_stats=False).double().eval()(values)
    assert torch.allclose(layer(mine), whole[hvd.rank() :: hvd.size()])


def check_gradients_after_the_end() -> None:
    net = line()
    optimizer = wrapped(net)
    handle = hvd.allreduce_async(torch.ones(1), name="never asked for")
    hvd.barrier()
    hvd.shutdown()
    net(torch.ones(1, 1)).sum().backward()
    assert float(net.weight.grad) == 1.0
    with raises(ValueError, "hvd.init()"):
        optimizer.step()
    hvd.init(process_sets="dynamic")
    assert hvd.synchronize(handle) is None
    assert not PROCESS.handles._held


if __name__ == "__main__":
    run(checks_of(globals()))
