"""horovod.torch with tensors of a GPU, which all ranks may share."""
# mypy: disable-error-code="no-untyped-call,arg-type,union-attr,index,assignment,no-any-return,misc"
# Gradients may be None to the type checker, and some arguments are wrong on purpose.

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

import unisono.horovod.torch as hvd

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.ranks.programs.horovod_checks import checks_of, raises, run

GPU = torch.device("cuda", 0)


def mine(*shape: int) -> torch.Tensor:
    return torch.full(shape, float(hvd.rank() + 1), device=GPU)


def check_operations() -> None:
    size, rank = hvd.size(), hvd.rank()
    total = float(sum(range(1, size + 1)))
    for _ in range(2):
        handles = [hvd.allreduce_async(mine(number + 1), name=f"t{number}", op=hvd.Sum) for number in range(20)]
        for number, handle in enumerate(handles):
            found = hvd.synchronize(handle)
            assert found.device == GPU
            assert torch.equal(found, torch.full((number + 1,), total, device=GPU))
    tensor = mine(3)
    assert hvd.allreduce_(tensor, op=hvd.Sum) is tensor
    assert tensor.tolist() == [total] * 3
    assert torch.equal(hvd.broadcast(mine(2), 0), torch.ones(2, device=GPU))
    gathered = hvd.allgather(mine(rank + 1, 2))
    assert gathered.device == GPU
    assert gathered[:, 0].tolist() == [float(other + 1) for other in range(size) for _ in range(other + 1)]
    rows, counts = hvd.alltoall(mine(size), torch.ones(size, dtype=torch.int32, device=GPU))
    assert rows.tolist() == [float(other + 1) for other in range(size)]
    assert counts.device == GPU
    assert torch.equal(hvd.reducescatter(mine(size), op=hvd.Sum), torch.full((1,), total, device=GPU))


def check_what_comes_after_the_kernels_before_it() -> None:
    """The operation is submitted while the GPU still computes its input."""
    for _ in range(5):
        slow = torch.ones(2000, 2000, device=GPU)
        for _ in range(20):
            slow = slow @ torch.full_like(slow, 1.0 / 2000)
        found = hvd.allreduce(slow, op=hvd.Sum)
        assert torch.allclose(found, torch.full_like(found, float(hvd.size())), rtol=1e-3)


def check_mixed_devices() -> None:
    if hvd.size() == 1:
        return
    tensor = torch.ones(3, device=GPU if hvd.rank() == 0 else "cpu")
    with raises(hvd.HorovodInternalError, "device"):
        hvd.allreduce(tensor, name="mixed")
    with raises(ValueError, "all on the CPU or all on CUDA"):
        hvd.grouped_allreduce([torch.ones(1), torch.ones(1, device=GPU)])


def check_learning() -> None:
    torch.manual_seed(hvd.rank())
    net = nn.Sequential(nn.Linear(8, 4), hvd.SyncBatchNorm(4), nn.Linear(4, 1)).to(GPU)
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(net.parameters()), net.named_parameters())
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.randn(6, 8, device=GPU)).square().mean().backward()
        optimizer.step()
    found = hvd.allgather_object([one.tolist() for one in net.state_dict().values()])
    assert all(one == found[0] for one in found)


if __name__ == "__main__":
    run(checks_of(globals()))
