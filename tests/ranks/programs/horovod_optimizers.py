"""horovod.torch: optimisers that share parameters, schedulers, hooks, failures, and gradients in several forms."""
# mypy: disable-error-code="no-untyped-call,arg-type,union-attr,index,assignment,no-any-return,misc,call-overload,attr-defined"
# Gradients may be None to the type checker, and some arguments are wrong on purpose.

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import unisono.horovod.torch as hvd
from unisono.horovod._impl.job.process_state import GLOBAL_ID, PROCESS

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.ranks.programs.horovod_checks import checks_of, raises, run
from tests.ranks.programs.horovod_optimizer import STEPS, alone, data, loss_of, model, same, sgd

warnings.simplefilter("error")


def one_step(net: nn.Module, optimizer: Any, step: int = 0) -> None:
    optimizer.zero_grad()
    loss_of(net, data(step, hvd.rank())).backward()
    optimizer.step()


def check_a_scheduler_that_was_made_before() -> None:
    """It holds the optimiser that ours was made from, and must change what ours reads, on all ranks."""
    for op in (hvd.Average, hvd.Adasum):
        net = model()
        plain = torch.optim.SGD(net.parameters(), lr=0.1 * (hvd.rank() + 1), momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(plain, 1, gamma=0.5)
        optimizer = hvd.DistributedOptimizer(plain, net.named_parameters(), op=op)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        assert optimizer.param_groups is plain.param_groups
        one_step(net, optimizer)
        optimizer.load_state_dict(optimizer.state_dict())
        scheduler.step()
        assert optimizer.param_groups[0]["lr"] == plain.param_groups[0]["lr"] == 0.05
        assert optimizer.state is plain.state
        assert len(optimizer.state) == 4


def check_hooks_of_steps_run_once() -> None:
    for op in (hvd.Average, hvd.Adasum):
        net = model()
        optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters(), op=op)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        seen: list[int] = []
        optimizer.register_step_post_hook(lambda *_, seen=seen: seen.append(1))
        one_step(net, optimizer)
        assert len(seen) == 1, seen


def check_names_that_are_made_up_are_remembered() -> None:
    if hvd.size() == 1:
        return
    net = model()
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()))
    for step in range(2):
        one_step(net, optimizer, step)
    negotiation = PROCESS.channel(GLOBAL_ID)._negotiation
    assert negotiation._cache.slot(f"allreduce.{optimizer._transport.operation_name('noname.0.0')}") is not None


def check_two_optimizers_of_the_same_parameters() -> None:
    """One after another, each with its own loss and its own settings; the older one is alive."""
    for groups in (None, 2):
        nets = [model(), model()]
        first = hvd.DistributedOptimizer(sgd(nets[0].parameters()), nets[0].named_parameters(), groups=groups)
        adam = torch.optim.Adam(nets[0].parameters(), lr=0.01 / hvd.size())
        second = hvd.DistributedOptimizer(adam, nets[0].named_parameters(), op=hvd.Sum)
        plain = sgd(nets[1].parameters()), torch.optim.Adam(nets[1].parameters(), lr=0.01 / hvd.size())
        for step in range(STEPS):
            for turn, (optimizer, local) in enumerate(zip((first, second), plain, strict=True)):
                optimizer.zero_grad()
                (loss_of(nets[0], data(step, hvd.rank())) * (turn + 1)).backward()
                optimizer.step()
                local.zero_grad()
                everything = torch.cat([data(step, rank) for rank in range(hvd.size())])
                factor = hvd.size() if turn else 1
                (loss_of(nets[1], everything) * (turn + 1) * factor).backward()
                local.step()
        same(*nets)


def check_a_cell_that_is_run_again() -> None:
    """In a notebook the optimiser before is still held by its scheduler, or by a variable."""
    net = model()
    held = []
    for _ in range(3):
        optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters())
        held.append((optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 100)))
        loss_of(net, data(0, hvd.rank())).backward()  # and the cell was stopped here
        net.zero_grad()
    for step in range(STEPS):
        one_step(net, optimizer, step)
    same(net, alone())
    del held
    net = model()
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters())
    for step in range(STEPS):
        one_step(net, optimizer, step)
    same(net, alone())


def gan(wrapped: Callable[[nn.Module], Any], zero: str, inputs: Callable[[int], torch.Tensor], passes: int) -> list[nn.Module]:
    torch.manual_seed(9)
    generator, judge = (nn.Linear(4, 4).double() for _ in range(2))
    of_generator, of_judge = wrapped(generator), wrapped(judge)
    for step in range(STEPS):
        (judge if zero == "model" else of_judge).zero_grad()
        for part in range(passes):
            judge(generator(inputs(step) + part).detach()).square().mean().backward()
        of_judge.step()
        (generator if zero == "model" else of_generator).zero_grad()
        for part in range(passes):
            judge(generator(inputs(step) - part)).mean().backward()  # computes gradients of the judge too, which nobody wants
        of_generator.step()
    return [generator, judge]


def check_parameters_that_come_later() -> None:
    """Layers that are frozen at first, as in fine-tuning, and those of `add_param_group`: the ranks stay equal."""
    torch.manual_seed(1)
    model, head = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), nn.Linear(2, 1)
    model[0].requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters())
    before = [one.detach().clone() for one in (*model.parameters(), *head.parameters())]
    for step in range(4):
        if step == 1:
            model[0].requires_grad_(True)
        if step == 2:
            optimizer.add_param_group({"params": list(head.parameters())})
        optimizer.zero_grad()
        head(model(torch.full((2, 3), 1.0 + hvd.rank()))).sum().backward()
        optimizer.step()
    for first, one in zip(before, (*model.parameters(), *head.parameters()), strict=True):
        assert not torch.equal(first, one), "it did not learn"
        everybodys = hvd.allgather(one.detach()[None])
        assert all(torch.equal(other, one) for other in everybodys), "the ranks differ"


def check_a_gan() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*, so [248] reduced gradients were not used")
        for passes in (1, 2):
            for zero in ("optimizer", "model"):
                found = gan(
                    lambda net: hvd.DistributedOptimizer(
                        sgd(net.parameters()),
                        net.named_parameters(),
                        backward_passes_per_step=passes,  # noqa: B023 -- used at once
                    ),
                    zero,
                    lambda step: data(step, hvd.rank()),
                    passes,
                )
                expected = gan(
                    lambda net: sgd(net.parameters()),
                    zero,
                    lambda step: torch.cat([data(step, rank) for rank in range(hvd.size())]),
                    passes,
                )
                for one, other in zip(found, expected, strict=True):
                    same(one, other)


def check_dropped_gradients_are_reported() -> None:
    net = model()
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters())
    one_step(net, optimizer)  # before it nobody knows in which form the others send, so nothing travels
    for step in range(1, STEPS):
        loss_of(net, data(0, hvd.rank())).backward()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            optimizer.zero_grad()
        assert [("zero_grad() was called before optimizer.step()" in str(one.message)) for one in seen] == [True] * (hvd.size() > 1)
        one_step(net, optimizer, step)
    same(net, alone())


def check_sparse_gradients_that_only_one_rank_has() -> None:
    size = hvd.size()
    for dense in (False, True):
        for make in (torch.optim.SGD, torch.optim.SparseAdam):
            table = nn.Embedding(6, 2, sparse=True)
            nn.init.ones_(table.weight)
            optimizer = hvd.DistributedOptimizer(make(table.parameters(), lr=1.0), table.named_parameters(), sparse_as_dense=dense)
            for _ in range(2):
                optimizer.zero_grad()
                if hvd.rank() == size - 1:
                    table(torch.tensor([3])).sum().backward()
                optimizer.step()
                assert table.weight.grad.is_sparse
                assert torch.allclose(table.weight.grad.to_dense()[3], torch.full((2,), 1.0 / size))
            assert torch.allclose(table.weight[0], torch.ones(2))
            assert len({tuple(row) for row in hvd.allgather_object(table.weight[3].tolist())}) == 1


def check_a_failure_leaves_nothing_behind() -> None:
    """The ranks disagree on one parameter: all reductions are over when that is raised, and Adasum leaves the weights alone."""
    if hvd.size() == 1:
        return
    for op in (hvd.Average, hvd.Adasum):
        net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2 + (hvd.rank() == 1)))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.5), net.named_parameters(), op=op)
        before = [one.detach().clone() for one in net.parameters()]
        for _ in range(2):
            optimizer.zero_grad()
            net(torch.ones(1, 3)).sum().backward()
            with raises(hvd.HorovodInternalError, "shape"):
                optimizer.step()
            assert not PROCESS.channel(GLOBAL_ID).waiting()
        assert all(torch.equal(one, old) for one, old in zip(net.parameters(), before, strict=True))


def check_adasum_of_different_steps() -> None:
    net = model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters(), op=hvd.Adasum)
    one_step(net, optimizer)
    moves = []
    for rank in range(hvd.size()):
        other = model()
        local = torch.optim.SGD(other.parameters(), lr=0.1)
        loss_of(other, data(0, rank)).backward()
        local.step()
        moves.append(
            [after.detach() - begin.detach() for after, begin in zip(other.parameters(), model().parameters(), strict=True)]
        )
    for number, (one, begin) in enumerate(zip(net.parameters(), model().parameters(), strict=True)):
        level = [of_rank[number].flatten() for of_rank in moves]
        while len(level) > 1:
            pairs = [
                (1 - a @ b / (2 * (a @ a))) * a + (1 - a @ b / (2 * (b @ b))) * b
                for a, b in zip(level[::2], level[1::2], strict=False)
            ]
            level = pairs + ([level[-1]] if len(level) % 2 else [])
        assert torch.allclose(one.detach().flatten(), begin.detach().flatten() + level[0])


if __name__ == "__main__":
    run(checks_of(globals()))
