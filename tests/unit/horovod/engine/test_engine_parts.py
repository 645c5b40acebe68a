"""The small pure parts of the Horovod front: settings, places, arithmetic, names, stall reports."""

from __future__ import annotations

import importlib

import pytest
import torch

from unisono.comm.control_plane.control import CurrentCall, Report
from unisono.comm.single_process import single_process_communicator
from unisono.errors import UsageError
from unisono.horovod._impl.engine.adasum import adasum
from unisono.horovod._impl.engine.agreed_operation import Agreement
from unisono.horovod._impl.engine.carrier import Carrier, rows_of_ranks
from unisono.horovod._impl.engine.operation_request import ALLGATHER, ALLREDUCE, BROADCAST, REDUCESCATTER, Request
from unisono.horovod._impl.engine.reduction_arithmetic import divide, finish_reduction, product, reduction_type, scale
from unisono.horovod._impl.engine.stall_watch import absent_ranks, submissions_of, users_part
from unisono.horovod._impl.exceptions import HorovodInternalError, HorovodVersionMismatchError, HostsUpdatedInterrupt
from unisono.horovod._impl.job.job_settings import HorovodSettings, settings_of
from unisono.horovod._impl.job.process_topology import topology_of_nodes
from unisono.horovod._impl.torch.gradient_names import parameter_groups, parameter_names
from unisono.horovod._impl.torch.submission import Average, Max, Sum, choose_op


def test_settings_without_variables_are_those_of_the_documentation() -> None:
    assert settings_of({}) == HorovodSettings(128 << 20, 1e-3, 1024, 60.0, 0.0, False)


def test_settings_are_read() -> None:
    env = {
        "HOROVOD_FUSION_THRESHOLD": "0",
        "HOROVOD_CYCLE_TIME": "2.5",
        "HOROVOD_CACHE_CAPACITY": "7",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "5",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "9",
        "HOROVOD_DYNAMIC_PROCESS_SETS": "1",
    }
    assert settings_of(env) == HorovodSettings(0, 2.5e-3, 7, 5.0, 9.0, True)
    assert settings_of({**env, "HOROVOD_STALL_CHECK_DISABLE": "1"}).stall_shutdown_s == 0.0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HOROVOD_FUSION_THRESHOLD", "many"),
        ("HOROVOD_FUSION_THRESHOLD", "-1"),
        ("HOROVOD_CYCLE_TIME", "nan"),
        ("HOROVOD_CYCLE_TIME", "-1"),
        ("HOROVOD_STALL_CHECK_TIME_SECONDS", "soon"),
        ("HOROVOD_DYNAMIC_PROCESS_SETS", "perhaps"),
    ],
)
def test_settings_that_make_no_sense_are_refused(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"{name}.*{value}"):
        settings_of({name: value})


def test_places_on_several_nodes() -> None:
    nodes = ["a", "a", "b", "b", "c"]
    found = [topology_of_nodes(rank, nodes, "gloo") for rank in range(5)]
    assert [(at.local_rank, at.local_size, at.cross_rank, at.cross_size) for at in found] == [
        (0, 2, 0, 3),
        (1, 2, 0, 2),
        (0, 2, 1, 3),
        (1, 2, 1, 2),
        (0, 1, 2, 3),
    ]
    assert not found[0].is_homogeneous
    assert topology_of_nodes(0, ["a", "b", "b", "a"], "gloo").is_homogeneous


def test_whole_numbers_are_scaled_exactly_and_cut_towards_zero() -> None:
    vector = torch.tensor([-7, 7, 2**53 // 2], dtype=torch.int64)
    scale(vector, 0.5)
    assert vector.tolist() == [-3, 3, 2**51]
    divide(vector, 2)
    assert vector.tolist() == [-1, 1, 2**50]


def test_means_travel_in_a_type_that_holds_their_sums() -> None:
    kinds = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float16)
    assert [reduction_type(kind, Average) for kind in kinds] == [torch.int32] * 3 + [torch.int64] * 2 + [torch.float16]
    assert reduction_type(torch.int8, Sum) == torch.int8
    half = torch.tensor([20000.0], dtype=torch.float16)
    finish_reduction(half, 4.0, 2)  # 80000 would not fit
    assert half.item() == 40000.0


def test_data_that_is_gone_is_an_error_and_never_zeros() -> None:
    request = Request("allreduce.x", ALLREDUCE, ((torch.float32, (3,)),))
    with single_process_communicator() as comm:
        carrier = Carrier(comm, [0])
        for kind in (ALLREDUCE, ALLGATHER, REDUCESCATTER, BROADCAST):
            with pytest.raises(HorovodInternalError, match=r"allreduce\.x, .* no longer in flight"):
                carrier.carry([Agreement((request._replace(kind=kind),))], {})
        carrier.carry([Agreement((request,), joined=[0])], {})  # who has joined adds zeros


def test_exceptions_as_programs_make_them() -> None:
    assert HostsUpdatedInterrupt(True).skip_sync
    error = HorovodVersionMismatchError("torch", "1.0", "2.0")
    assert (error.name, error.version, error.installed_version) == ("torch", "1.0", "2.0")
    assert isinstance(error, ImportError)


def test_modules_that_programs_import_by_path() -> None:
    from unisono.horovod.common.basics import HorovodBasics
    from unisono.horovod.common.util import extension_available, gloo_built, is_version_greater_equal_than, split_list
    from unisono.horovod.torch import mpi_ops

    for name in ("functions", "optimizer", "compression", "sync_batch_norm"):
        module = importlib.import_module(f"unisono.horovod.torch.{name}")
        assert all(hasattr(module, given) for given in module.__all__)
    for given in ("allreduce_async_", "synchronize", "Sum", "init", "rank", "handle_average_backwards_compatibility"):
        assert hasattr(mpi_ops, given)
    assert isinstance(mpi_ops._basics, HorovodBasics)
    assert (mpi_ops._basics.Average, mpi_ops._basics.Product) == (0, 5)
    with pytest.raises(ValueError, match="init"):
        mpi_ops._basics._get_process_set_ids_and_ranks()
    assert gloo_built(verbose=True)
    assert extension_available("torch")
    assert not extension_available("mxnet")
    assert split_list([1, 2, 3], 2) == [[1, 2], [3]]
    assert is_version_greater_equal_than("2.1.0+cpu", "2.1.0")
    assert not is_version_greater_equal_than("1.13", "2.0.0")


def test_halves_are_multiplied_in_float32() -> None:
    rows = torch.tensor([[60000.0], [2.0], [0.25]], dtype=torch.float16)
    out = torch.empty(1, dtype=torch.float16)
    product(out, rows)  # 120000 would not fit
    assert out.item() == 30000.0


def test_adasum_adds_what_is_orthogonal_and_averages_what_is_parallel() -> None:
    x, y = torch.tensor([2.0, 0.0]), torch.tensor([0.0, 4.0])
    assert torch.equal(adasum([x, y]), torch.tensor([2.0, 4.0]))
    assert torch.equal(adasum([x, x]), x)
    assert torch.equal(adasum([x, torch.zeros(2)]), x)
    assert torch.equal(adasum([x] * 3), x)
    assert torch.equal(adasum([x] * 4), x)


def test_rows_that_do_not_divide_go_to_the_first_ranks() -> None:
    assert rows_of_ranks(7, 3) == [3, 2, 2]
    assert rows_of_ranks(1, 3) == [1, 0, 0]


def test_the_reduction_that_is_meant() -> None:
    assert choose_op(None, None) == Average
    assert choose_op(Max, None) == Max
    with pytest.warns(DeprecationWarning, match="average"):
        assert choose_op(None, False) == Sum
    with pytest.raises(ValueError, match="both"):
        choose_op(Sum, True)
    with pytest.raises(ValueError, match="17"):
        choose_op(17, None)


def test_names_of_parameters() -> None:
    a, b, c = (torch.nn.Parameter(torch.zeros(1)) for _ in range(3))
    groups = [{"params": [a, b]}, {"params": [c]}]
    assert list(parameter_names(groups, None).values()) == ["noname.0.0", "noname.0.1", "noname.1.0"]
    assert parameter_names(groups, [("c", c), ("b", b), ("a", a)]) == {a: "a", b: "b", c: "c"}
    with pytest.raises(ValueError, match="duplicate names: a"):
        parameter_names(groups, [("a", a), ("a", b), ("c", c)])
    with pytest.raises(ValueError, match="lacks 1 of the 3"):
        parameter_names(groups, [("a", a), ("b", b)])
    with pytest.raises(ValueError, match="pairs"):
        parameter_names(groups, [a, b])  # type: ignore[list-item]


def test_groups_of_parameters() -> None:
    a, b, c = held = [torch.nn.Parameter(torch.zeros(1)) for _ in range(3)]
    assert parameter_groups(held, None) == parameter_groups(held, 0) == []
    assert parameter_groups(held, 2) == [[a], [b, c]]
    assert parameter_groups(held, 9) == [[a], [b], [c]]
    assert parameter_groups(held, [[b, a]]) == [[b, a]]
    for wrong in (-1, "ab", [[1]], [[a], [a]], [a]):
        with pytest.raises(ValueError, match="groups"):
            parameter_groups(held, wrong)  # type: ignore[arg-type]


def test_ranks_that_have_not_submitted() -> None:
    reports = {
        0: Report({"horovod-0": CurrentCall(0, "allreduce.a\nallreduce.b")}, "stack 0"),
        1: Report({"horovod-0": CurrentCall(0, "")}, "stack 1"),
        2: Report({}, "stack 2"),
        4: Report({"horovod-0": CurrentCall(0, "join")}, "stack 4"),
    }
    names = submissions_of(reports, "horovod-0")
    assert absent_ranks("allreduce.a", (0, 1, 2, 3, 4), names) == [1, 2, 3]


def test_stacks_are_shown_without_our_own_threads() -> None:
    assert users_part("thread unisono-horovod-0:\n  x\n\nthread MainThread:\n  File a\n    y\nthread unisono-hub:\n  z") == (
        "thread MainThread:\n  File a\n    y"
    )
