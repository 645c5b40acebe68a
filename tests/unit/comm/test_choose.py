"""The choice of engine and all-reduce, the refusals with their remedies, and the record of the user's settings of MPI."""

from __future__ import annotations

import importlib.util
import platform
import sys
from dataclasses import replace

import pytest
import torch

from unisono.cluster.launchers.local import resolve as resolve_local
from unisono.cluster.launchers.mpi_env import mpi_selection
from unisono.cluster.resolve import current_topology
from unisono.cluster.topology import Overrides, Topology
from unisono.comm.choose import ProcessInfo, check_engine, choose_allreduce, choose_engine, describe_process, node_indices
from unisono.comm.connect import connect
from unisono.errors import UsageError

ME = ProcessInfo(node="node 0", cpus=(0, 1), gpu="", has_mpi=True, no_shm="")
NO_SHM = "engine shm needs Linux; this is darwin on arm64"


def on(*nodes: str, gpu: bool = False) -> list[ProcessInfo]:
    """A process on each of these nodes; with `gpu` each has one of its own."""
    return [replace(ME, node=node, gpu=f"GPU-{rank}" if gpu else "") for rank, node in enumerate(nodes)]


def topology() -> Topology:
    found = resolve_local({}, Overrides())
    assert isinstance(found, Topology)
    return found


# ---- the engine --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("launcher", "members", "engine", "reason"),
    [
        ("local", on("a"), "single", "one process"),
        ("openmpi", on("a"), "single", "one process"),
        ("local", on("a", gpu=True), "nccl", "one process with a GPU"),
        ("unisono", on("a", "a"), "shm", "one machine"),
        ("openmpi", on("a", "a"), "shm", "one machine"),
        ("unisono", on("a", "a", gpu=True), "nccl", "a GPU for each process"),
        ("slurm", on("a", "b", gpu=True), "nccl", "a GPU for each process"),
        ("slurm", on("a", "b"), "gloo", "several nodes"),
        ("torchrun", on("a", "b"), "gloo", "several nodes"),
        ("openmpi", on("a", "a", "b"), "mpi", "several nodes, started by MPI"),
        ("pmi", on("a", "b"), "mpi", "several nodes, started by MPI"),
    ],
)
def test_the_engine_that_is_chosen(launcher: str, members: list[ProcessInfo], engine: str, reason: str) -> None:
    assert choose_engine("auto", launcher, members) == (engine, reason)


def test_the_requested_engine_is_taken() -> None:
    assert choose_engine("gloo", "openmpi", on("a", "a", gpu=True)) == ("gloo", "as asked")


def test_no_nccl_where_processes_share_a_gpu_or_have_none() -> None:
    shared = [replace(member, gpu="GPU-0") for member in on("a", "a")]
    assert choose_engine("auto", "unisono", shared)[0] == "shm"
    assert choose_engine("auto", "unisono", [*on("a", gpu=True), *on("a")])[0] == "shm"
    # Two machines may call their GPUs alike.
    alike = [replace(member, gpu="GPU-0") for member in on("a", "b")]
    assert choose_engine("auto", "slurm", alike)[0] == "nccl"


def test_no_mpi_where_one_process_lacks_mpi4py() -> None:
    members = [ME, replace(ME, node="node 1", has_mpi=False)]
    assert choose_engine("auto", "openmpi", members) == ("gloo", "several nodes")


def test_without_shared_memory_gloo_is_taken_and_the_reason_said() -> None:
    members = [ME, replace(ME, no_shm=NO_SHM)]
    assert choose_engine("auto", "unisono", members) == ("gloo", NO_SHM)


def test_a_mac_has_no_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    mac = describe_process(topology())
    assert "engine shm needs Linux" in mac.no_shm
    assert "this is darwin on arm64" in mac.no_shm
    assert choose_engine("auto", "unisono", [mac, mac]) == ("gloo", mac.no_shm)
    with pytest.raises(UsageError, match=r"engine shm needs Linux .* this is darwin on arm64; use --engine gloo"):
        check_engine("shm", mac, [0, 0])


def test_the_facts_of_a_process() -> None:
    at = topology()
    assert bool(describe_process(at).no_shm) == (sys.platform != "linux")
    assert describe_process(replace(at, node_rank=3, num_nodes=4)).node == "node 3"
    assert describe_process(replace(at, node_rank=None, num_nodes=None, node_name="n7")).node == "n7"
    unnamed = replace(at, node_rank=None, num_nodes=None)
    assert describe_process(unnamed).node == describe_process(unnamed).node != ""


def test_nodes_are_numbered_by_first_appearance() -> None:
    assert node_indices(on("n9", "n2", "n9", "n5")) == [0, 1, 0, 2]


# ---- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["single", "shm", "mpi", "gloo"])
def test_what_can_work_is_not_refused(engine: str) -> None:
    check_engine(engine, ME, [0])


@pytest.mark.parametrize(
    ("engine", "me", "nodes", "message"),
    [
        ("single", ME, [0, 0], r"engine single is for one process, but there are 2 \(--engine or UNISONO_ENGINE\); leave it out"),
        ("shm", ME, [0, 1], r"engine shm works on one node, but the job has 2 \(--engine or UNISONO_ENGINE\); use gloo or mpi"),
        ("shm", replace(ME, no_shm=NO_SHM), [0, 0], NO_SHM),
        (
            "mpi",
            replace(ME, has_mpi=False),
            [0, 0],
            r"needs the package mpi4py, which is not installed; pip install 'unisono\[mpi\]'",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_a_remedy(engine: str, me: ProcessInfo, nodes: list[int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_engine(engine, me, nodes)


def test_nccl_without_cuda_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match=r"engine nccl needs CUDA, .*; install a CUDA build of PyTorch and start one process"):
        check_engine("nccl", ME, [0])


def test_an_installed_mpi4py_is_seen_and_a_missing_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    for present in (True, False):
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, found=present: found or None if name == "mpi4py" else real(name)
        )
        assert describe_process(topology()).has_mpi is present
    with pytest.raises(UsageError, match="pip install"):
        connect(engine="mpi", topology=topology(), quiet=True)


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(
        UsageError, match=r"engine must be one of auto, single, shm, mpi, gloo, nccl; received 'tcp' \(connect\(engine"
    ):
        connect(engine="tcp", topology=topology())
    with pytest.raises(UsageError, match=r"allreduce must be one of auto, ring, .*; received 'tree' \(connect\(allreduce"):
        connect(allreduce="tree", topology=topology())


# ---- the all-reduce ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "nodes", "num_nodes", "chosen"),
    [
        ("shm", [0, 0, 0], 1, "engine"),
        ("gloo", [0, 0, 0], 1, "engine"),
        ("mpi", [0, 0, 0], 1, "engine"),
        ("nccl", [0, 0, 1], 2, "engine"),
        ("gloo", [0, 1], 2, "auto"),
        ("mpi", [0, 1], 2, "engine"),
        ("gloo", [0, 0, 1], 2, "node_aware"),
        ("mpi", [0, 0, 1], 2, "node_aware"),
        # groups of a job of two nodes
        ("gloo", [1, 1], 2, "node_aware"),
        ("mpi", [1, 1], 2, "node_aware"),
        ("gloo", [0], 2, "auto"),
    ],
)
def test_the_allreduce_that_is_chosen(engine: str, nodes: list[int], num_nodes: int, chosen: str) -> None:
    assert choose_allreduce("auto", engine, nodes, num_nodes) == chosen
    assert choose_allreduce("engine", engine, nodes, num_nodes) == "engine"
    if engine != "nccl":
        assert choose_allreduce("ring", engine, nodes, num_nodes) == "ring"


def test_nccl_has_its_own_allreduce() -> None:
    with pytest.raises(UsageError, match=r"allreduce ring cannot be used with engine nccl, which has its own \(--allreduce or"):
        choose_allreduce("ring", "nccl", [0, 1], 2)


# ---- what MPI was told -------------------------------------------------------------------------------------------------


def test_variables_that_steer_the_mpi_library_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {
        "I_MPI_ADJUST_ALLREDUCE": "2",
        "I_MPI_COLL_INTRANODE": "pt2pt",
        "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "ring",
        "OMPI_MCA_coll_tuned_allreduce_algorithm": "4",
        "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
    }
    others = {"OMPI_MCA_btl": "tcp,self", "I_MPI_FABRICS": "shm", "MPIR_CVAR_CH4_NETMOD": "ofi", "PATH": "/bin"}
    assert mpi_selection({**others, **told}) == tuple(sorted(told.items()))
    assert mpi_selection(others) == ()
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert set(told.items()) <= set(current_topology().mpi_selection)


def test_they_are_shown_only_where_mpi_reduces() -> None:
    told = replace(topology(), mpi_selection=(("OMPI_MCA_coll_tuned_allreduce_algorithm", "4"),))
    with connect(engine="single", topology=told, quiet=True) as comm:
        assert comm.origin.endswith("engine single (as asked), all-reduce by the engine itself")
