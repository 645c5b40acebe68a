"""Every way to import Horovod, as programs written for it do: the modules are ours, and the same under both names."""

from __future__ import annotations

import importlib
import multiprocessing
import pickle
import sys

import cloudpickle
import horovod
import horovod.torch as hvd
import torch
from horovod import torch as also_hvd
from horovod.common.exceptions import HorovodInternalError
from horovod.runner.common.util.env import get_env_rank_and_size
from horovod.torch import DistributedOptimizer

import unisono.horovod
import unisono.horovod.torch as ours


def in_a_child(_: int) -> tuple[str, bool]:
    import horovod.torch

    return horovod.__version__, horovod.torch.__name__ == "unisono.horovod.torch"


def check_modules() -> None:
    assert horovod is unisono.horovod and hvd is also_hvd is ours is horovod.torch
    for name in [name for name in sys.modules if name == "horovod" or name.startswith("horovod.")]:
        assert sys.modules[name] is sys.modules[f"unisono.{name}"], name
        spec = sys.modules[name].__spec__
        assert spec is not None and spec.name == f"unisono.{name}", name
    assert importlib.import_module("horovod.common") is importlib.import_module("unisono.horovod.common")
    assert importlib.reload(horovod.common).__name__ == "unisono.horovod.common"
    assert importlib.util.find_spec("horovod.torch") is not None
    assert horovod.__version__ == "0.28.1"
    assert DistributedOptimizer is ours.DistributedOptimizer
    assert hvd.mpi_ops.Sum == hvd.Sum and hvd.elastic.sampler.ElasticSampler is hvd.elastic.ElasticSampler


def check_pickles() -> None:
    from unisono.horovod.common.exceptions import HorovodInternalError as Ours

    assert HorovodInternalError is Ours
    assert pickle.loads(pickle.dumps(HorovodInternalError)) is Ours
    assert isinstance(pickle.loads(pickle.dumps(HorovodInternalError("x"))), Ours)
    assert cloudpickle.loads(cloudpickle.dumps(lambda: hvd))() is hvd


def check_what_is_not_there() -> None:
    for name, remedy in (
        ("spark", "horovodrun"),
        ("ray.runner", "horovodrun"),
        ("mxnet", "horovod.torch"),
        ("runner.elastic", "horovodrun"),
        ("torch.nothing.x", "No module named"),
    ):
        try:
            importlib.import_module(f"horovod.{name}")
        except ModuleNotFoundError as error:
            assert remedy in str(error) and f"horovod.{name.split('.')[0]}" in str(error), error
        else:
            raise AssertionError(f"horovod.{name} was found")
    assert importlib.util.find_spec("horovod.nothing") is importlib.util.find_spec("horovod.torch.nothing") is None
    try:
        from horovod import nothing  # noqa: F401
    except ImportError:
        pass
    else:
        raise AssertionError("horovod.nothing was found")


if __name__ == "__main__":
    check_modules()
    check_pickles()
    check_what_is_not_there()
    asked = get_env_rank_and_size()
    hvd.init()
    assert asked == (hvd.rank(), hvd.size())
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [2.0, 2.0]
    if hvd.rank() == 0:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.map(in_a_child, [0]) == [("0.28.1", True)]
    print(f"rank {hvd.rank()} found all")
