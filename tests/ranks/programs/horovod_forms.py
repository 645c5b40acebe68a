"""horovod.torch: gradients that are sparse on some ranks, or on none for a while, and ranks that join before they have any."""
# mypy: disable-error-code="no-untyped-call,union-attr,operator,arg-type,index,no-any-return,call-overload"

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch
from torch import nn

import unisono.horovod.torch as hvd
from unisono.horovod._impl.job.process_state import GLOBAL_ID, PROCESS

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.ranks.programs.horovod_checks import checks_of, raises, run

warnings.simplefilter("error")


def table(sparse: bool = True) -> nn.Embedding:
    made = nn.Embedding(4, 2, sparse=sparse)
    nn.init.ones_(made.weight)
    return made


def check_forms_that_differ() -> None:
    """Refused on all ranks alike, with nothing left in flight; or all travel dense."""
    one = table(sparse=hvd.rank() == 0)
    for groups in (None, 1):
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(one.parameters(), lr=1.0), one.named_parameters(), groups=groups)
        for _ in range(2 if hvd.size() > 1 else 0):
            one(torch.tensor([1])).sum().backward()
            with raises(ValueError, "the gradients of weight are dense on some ranks and sparse on others"):
                optimizer.step()
            assert not PROCESS.channel(GLOBAL_ID).waiting()
            one.zero_grad()
        del optimizer
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(one.parameters(), lr=1.0), one.named_parameters(), sparse_as_dense=True)
    one(torch.tensor([1])).sum().backward()
    optimizer.step()
    assert torch.allclose(one.weight.grad.to_dense()[1], torch.ones(2))
    assert one.weight.tolist() == [[1.0, 1.0], [0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]


def check_a_table_that_is_used_later_on_one_rank() -> None:
    for wait in (1, 20):  # while ranks still ask each other for its form, and after that
        net = nn.ModuleList([table(), nn.Linear(1, 1, bias=False)])
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=1.0), net.named_parameters())
        for step in range(wait + 2):
            optimizer.zero_grad()
            loss = net[1](torch.ones(1, 1)).sum()
            if step >= wait and hvd.rank() == 0:
                loss = loss + net[0](torch.tensor([step % 2])).sum()
            loss.backward()
            optimizer.step()
        expected = torch.ones(4, 2)
        expected[:2] -= 1.0 / hvd.size()
        assert torch.allclose(net[0].weight, expected)


def check_a_rank_without_batches_joins_first() -> None:
    net = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(net.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=1.0), net.named_parameters())
    for epoch in range(3):
        for _ in range(2 if epoch or hvd.rank() == 0 else 0):
            optimizer.zero_grad()
            net(torch.ones(1, 1)).sum().backward()
            optimizer.step()
        hvd.join()
        hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    assert torch.allclose(net.weight, torch.tensor([[-2.0 / hvd.size() - 4.0]]))


def check_names_of_our_own_are_free() -> None:
    net = nn.ParameterDict({name: nn.Parameter(torch.zeros(2)) for name in ("forms", "sparsity", "loss", "added", "group")})
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=1.0), net.named_parameters())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = sum(one.sum() for one in net.values())
        loss.backward()
        return loss

    optimizer.step(closure)
    assert all(one.tolist() == [-1.0, -1.0] for one in net.values())


def check_an_optimizer_that_knows_sparse_gradients_only() -> None:
    for with_model in (False, True):
        one = table()
        optimizer = hvd.DistributedOptimizer(torch.optim.SparseAdam(one.parameters(), lr=0.1), one.named_parameters())
        hvd.broadcast_optimizer_state(optimizer, 0, model=one if with_model else None)
        for _ in range(2):
            one(torch.tensor([hvd.rank() % 2])).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert bool((one.weight[0] < 1.0).all())
        assert one.weight[3].tolist() == [1.0, 1.0]
        assert len({tuple(map(tuple, rows)) for rows in hvd.allgather_object(one.weight.tolist())}) == 1


def check_zeros_put_there_before_do_not_decide() -> None:
    """Dense zeros of `broadcast_optimizer_state`: the first step is dense, the later ones are sparse again."""
    one = table()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(one.parameters(), lr=1.0), one.named_parameters())
    hvd.broadcast_optimizer_state(optimizer, 0)
    for step in range(3):
        one(torch.tensor([1])).sum().backward()
        optimizer.step()
        assert one.weight.grad.is_sparse == (step > 0)
        optimizer.zero_grad()
    assert one.weight[1].tolist() == [-2.0, -2.0]


if __name__ == "__main__":
    run(checks_of(globals()))
