"""horovod.torch: what outlives `shutdown`, and what does not."""
# mypy: disable-error-code="no-untyped-call,arg-type,union-attr,index,assignment,no-any-return,misc"
# Gradients may be None to the type checker, and some arguments are wrong on purpose.

from __future__ import annotations

import copy
import pickle
import sys
import warnings
from pathlib import Path

import torch

import unisono.horovod.torch as hvd

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.ranks.programs.horovod_checks import checks_of, raises, run
from tests.ranks.programs.horovod_optimizer import data, loss_of, model, sgd

warnings.simplefilter("error")


def again(process_sets: object = "dynamic") -> None:
    hvd.barrier()
    hvd.shutdown()
    hvd.init(process_sets=process_sets)


def check_optimizers_that_outlive_a_shutdown() -> None:
    """Names must be alike on a rank that was there before and on one that has just come, which makes everything anew."""
    again()
    nets = [model() for _ in range(3)]
    first = hvd.DistributedOptimizer(sgd(nets[0].parameters()), nets[0].named_parameters())
    gone = hvd.DistributedOptimizer(sgd(nets[1].parameters()), nets[1].named_parameters())
    adasum = hvd.DistributedOptimizer(sgd(nets[2].parameters()), nets[2].named_parameters(), op=hvd.Adasum)
    del gone
    if hvd.rank() == 1:
        del first, adasum
    again()
    if hvd.rank() == 1:
        first = hvd.DistributedOptimizer(sgd(nets[0].parameters()), nets[0].named_parameters())
        adasum = hvd.DistributedOptimizer(sgd(nets[2].parameters()), nets[2].named_parameters(), op=hvd.Adasum)
    loss_of(nets[0], data(0, hvd.rank())).backward()
    first.step()
    first.zero_grad()
    late = hvd.DistributedOptimizer(sgd(nets[1].parameters()), nets[1].named_parameters())
    for step in range(2):
        for net in nets:
            loss_of(net, data(step, hvd.rank())).backward()
        for optimizer in (late, adasum, first):
            optimizer.step()
            optimizer.zero_grad()
    sums = hvd.allgather_object([float(one.detach().sum()) for net in nets for one in net.parameters()])
    assert all(one == sums[0] for one in sums)


def check_optimizers_that_are_recreated_after_each_init() -> None:
    """Some ranks still hold those of the life before."""
    held = []
    for life in range(3):
        again()
        net = model()
        optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters())
        loss_of(net, data(life, hvd.rank())).backward()
        optimizer.step()
        sums = hvd.allgather_object([float(one.detach().sum()) for one in net.parameters()])
        assert all(one == sums[0] for one in sums)
        if hvd.rank() == 0:
            held.append(optimizer)


def check_layers_that_outlive_a_shutdown() -> None:
    again()
    layers = [hvd.SyncBatchNorm(2) for _ in range(2)]
    for layer in layers:
        layer(torch.randn(3, 2))
    if hvd.rank() == 1:
        layers = [copy.deepcopy(layer) for layer in layers]
    copies = [copy.deepcopy(layers[0]), pickle.loads(pickle.dumps(layers[1]))]
    again()
    for layer in (*layers, *copies):
        layer(torch.randn(3, 2)).sum().backward()
    assert torch.equal(hvd.allreduce(layers[0].bias.grad, op=hvd.Max), layers[0].bias.grad)


def check_a_process_set_from_before_a_shutdown() -> None:
    if hvd.size() == 1:
        return
    again()
    old = hvd.add_process_set([0])
    new = hvd.ProcessSet([1])
    again([new])
    assert old.process_set_id == new.process_set_id  # but it is another one
    with raises(ValueError, "not registered"):
        old.included()
    with raises(ValueError, "not registered"):
        hvd.allreduce(torch.ones(1), process_set=old)
    again("dynamic")
    assert not hvd.remove_process_set(old)
    net = model()
    both = hvd.add_process_set(list(range(hvd.size()))[:1])
    optimizer = hvd.DistributedOptimizer(sgd(net.parameters()), net.named_parameters(), process_set=both)
    loss_of(net, data(0, hvd.rank())).backward()
    optimizer.step()
    assert hvd.remove_process_set(both)


class AllRanks:
    """As much of mpi4py's communicator as is looked at."""

    def Get_rank(self) -> int:
        return hvd.rank()

    def Get_size(self) -> int:
        return hvd.size()


def check_init_after_shutdown() -> None:
    size, rank = hvd.size(), hvd.rank()
    hvd.barrier()
    hvd.shutdown()
    assert not hvd.is_initialized()
    hvd.shutdown()  # again: nothing happens
    with raises(ValueError, "Horovod has not been initialized; use hvd.init()."):
        hvd.rank()
    with raises(ValueError, "hvd.init()"):
        hvd.allreduce(torch.ones(1))
    one = hvd.ProcessSet([0])
    if size == 1:
        with raises(ValueError, "already"):
            hvd.init(process_sets=[one])
    else:
        hvd.init(process_sets=[one])
        hvd.init(process_sets=[one])
        assert one.process_set_id == 1
        added = hvd.add_process_set([1])  # an earlier init asked for sets that may change, and so it stays
        assert hvd.remove_process_set(added)
        with raises(ValueError, "already"):
            hvd.init(process_sets=[hvd.ProcessSet([1]), hvd.ProcessSet([1])])
        again, other = hvd.ProcessSet([0]), hvd.ProcessSet([1])  # other objects, as of a cell that is run again
        hvd.init(process_sets=[again, other])
        assert (again.process_set_id, other.process_set_id) == (1, 2)
    assert (hvd.size(), hvd.rank()) == (size, rank)
    with raises(ValueError, "comm"):
        hvd.init(comm=object())
    with raises(ValueError, "process sets for parts"):
        hvd.init(comm=[0, size])
    hvd.init(comm=list(range(size)))
    hvd.init(comm=AllRanks())
    with raises(ValueError, "dynamic"):
        hvd.init(process_sets="static")
    assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [hvd.size()] * 3


if __name__ == "__main__":
    run(checks_of(globals()))
