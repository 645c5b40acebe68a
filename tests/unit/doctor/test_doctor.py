"""Every finding of `unisono doctor`: facts that produce it, and facts that nearly do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from unisono.doctor.checks import examine
from unisono.doctor.facts import Facts, Interface, Job, Measurement, Mpi, Torch
from unisono.doctor.finding import FAIL, OK, WARN, Finding

GIB = 1 << 30
LOOPBACK = Interface("lo", "loopback", True, None, ("127.0.0.1",))
SLOW = Interface("eth0", "ethernet", True, 1000, ("10.0.0.1",))
FAST = Interface("ib0", "infiniband", True, 100_000, ("10.1.0.1",))
DEVICE = Interface("mlx5_0", "rdma", True, 100_000)
OPEN_MPI = Mpi("Open MPI 5.0.8", "4.1.2", "Open MPI v5.0.8")


def rank(number: int = 0, size: int = 1, **changes: Any) -> Facts:
    """A rank of a job in which all is well: eight CPUs and eight threads on a node of its own."""
    healthy = Facts(
        rank=number,
        size=size,
        launcher="slurm" if size > 1 else "local",
        node=f"node {number}",
        host=f"n{number}",
        pid=1000 + number,
        address=f"10.0.0.{number + 1}" if size > 1 else "127.0.0.1",
        host_addresses=(f"10.0.0.{number + 1}",),
        cpus=tuple(range(8)),
        parent_cpus=tuple(range(8)),
        variables={"OMP_NUM_THREADS": "8"},
        shm_bytes=16 * GIB,
        shm_free_bytes=16 * GIB,
        memory_bytes=64 * GIB,
        interfaces=(LOOPBACK, replace(SLOW, addresses=(f"10.0.0.{number + 1}",))),
        open_files=4096,
        open_files_hard=8192,
        python="3.11.7",
        executable="/env/bin/python",
        unisono="0.1.0",
        torch=Torch("2.9.0", threads=8),
    )
    return replace(healthy, **changes)


def job(*ranks: Facts, **changes: Any) -> Job:
    first = ranks[0]
    return replace(Job(ranks, first.launcher, first.size), **changes)


def neighbours(number: int, **changes: Any) -> Job:
    """Ranks of one node that share its eight CPUs evenly."""
    threads = 8 // number
    common = {"node": "node 0", "host": "n0", "torch": Torch("2.9.0", threads=threads), **changes}
    return job(*(rank(r, number, **common) for r in range(number)))


def pair(**changes: Any) -> Job:
    """Two nodes with a rank each; both have what `changes` says."""
    return job(rank(0, 2, **changes), rank(1, 2, **changes))


def with_gpus(*ours: tuple[str, ...], visible: tuple[str, ...] = ("0", "1"), **changes: Any) -> Job:
    torch = Torch("2.9.0", threads=8 // len(ours), cuda="12.8", num_gpus=len(visible))
    return job(
        *(
            rank(r, len(ours), **{"node": "node 0", "gpus": visible, "our_gpus": own, "torch": torch, **changes})
            for r, own in enumerate(ours)
        )
    )


@dataclass(frozen=True)
class Case:
    """`bad` has the finding, `good` is as near as can be and has not."""

    level: str
    check: str
    fact: str
    remedy: str
    bad: Job
    good: Job


ALONE, TWO = job(rank()), pair()
MPI_TWO = pair(launcher="openmpi", mpi=OPEN_MPI)
FABRIC = (LOOPBACK, SLOW, FAST)
CASES = (
    # ---- as many processes as were asked for
    Case(
        FAIL,
        "ranks",
        "2 processes, started by slurm, but -n requests 4",
        "srun -n 4",
        replace(TWO, num_expected=4),
        replace(TWO, num_expected=2),
    ),
    Case(
        FAIL,
        "ranks",
        "1 process, started by local, but -n requests 4",
        "this is the batch script",
        replace(ALONE, num_expected=4, note="this is the batch script"),
        replace(ALONE, num_expected=1, note="this is the batch script"),
    ),
    Case(
        WARN,
        "ranks",
        "-n requests 4 processes, but this process is alone",
        "unisono run -n 4",
        replace(ALONE, num_expected=4),
        ALONE,
    ),
    Case(WARN, "ranks", "this is the batch script", "srun", replace(ALONE, note="this is the batch script"), ALONE),
    # ---- software
    Case(
        FAIL,
        "software",
        "PyTorch cannot be used by rank 0 (/env/bin/python): it is not installed",
        "pip install torch",
        job(rank(torch=Torch(error="it is not installed"))),
        ALONE,
    ),
    Case(
        FAIL,
        "software",
        "different versions of torch: 2.9.0 on rank 0; 2.10.1 on rank 1",
        "the same environment",
        job(rank(0, 2), rank(1, 2, torch=Torch("2.10.1", threads=8))),
        TWO,
    ),
    Case(
        FAIL, "software", "different versions of unisono", "the same environment", job(rank(0, 2), rank(1, 2, unisono="0.2")), TWO
    ),
    Case(WARN, "software", "different versions of Python", "the same environment", job(rank(0, 2), rank(1, 2, python="3.12")), TWO),
    Case(
        WARN,
        "software",
        "torch 2.8.1 is older than 2.9",
        "pip install 'torch>=2.9'",
        job(rank(torch=Torch("2.8.1", threads=8))),
        job(rank(torch=Torch("2.10.0+cpu", threads=8))),
    ),
    # ---- MPI
    Case(
        FAIL,
        "mpi",
        "mpirun is of MPICH, but mpi4py 4.1.2 uses Open MPI v5.0.8",
        "use the mpirun of Open MPI, or build mpi4py for MPICH: pip install --no-binary mpi4py",
        pair(launcher="pmi", mpi=replace(OPEN_MPI, launcher="MPICH")),
        pair(launcher="pmi", mpi=Mpi("MPICH", "4.1.2", "Intel(R) MPI Library 2021.14")),
    ),
    Case(
        FAIL,
        "mpi",
        "MPI takes rank 0 of 2 for rank 0 of 1 (ranks 0-1)",
        "use the mpirun that belongs to this library",
        pair(launcher="openmpi", mpi=replace(OPEN_MPI, rank=0, size=1)),
        job(*(rank(r, 2, launcher="openmpi", mpi=replace(OPEN_MPI, rank=r, size=2)) for r in (0, 1))),
    ),
    Case(
        FAIL,
        "mpi",
        "different MPI libraries (rank 0: Open MPI v5.0.8; rank 1: MPICH Version: 5.0)",
        "the same environment",
        job(
            *(
                rank(r, 2, launcher="openmpi", mpi=replace(OPEN_MPI, library=name))
                for r, name in enumerate(("Open MPI v5.0.8", "MPICH Version: 5.0"))
            )
        ),
        MPI_TWO,
    ),
    Case(
        FAIL,
        "mpi",
        "its library cannot be loaded: libmpi.so.40: cannot open",
        "load the MPI for which mpi4py was built",
        pair(launcher="openmpi", mpi=Mpi("Open MPI", "4.1.2", error="libmpi.so.40: cannot open")),
        MPI_TWO,
    ),
    Case(
        WARN,
        "mpi",
        "its library cannot be loaded: libmpi.so.40: cannot open",
        "pip install --no-binary mpi4py",
        job(rank(mpi=Mpi("", "4.1.2", error="libmpi.so.40: cannot open"))),
        job(rank(mpi=replace(OPEN_MPI, launcher=""))),
    ),
    Case(
        FAIL,
        "mpi",
        "MPI cannot be started: no answer within 20 s",
        "load the MPI",
        pair(launcher="openmpi", mpi=replace(OPEN_MPI, error="no answer within 20 s")),
        MPI_TWO,
    ),
    Case(
        FAIL,
        "mpi",
        "engine mpi was requested, but mpi4py is not installed",
        "pip install mpi4py",
        pair(engine="mpi"),
        pair(engine="gloo"),
    ),
    Case(
        WARN,
        "mpi",
        "several nodes, but mpi4py is not installed, so gloo is used",
        "pip install mpi4py",
        pair(launcher="openmpi", mpi=Mpi("Open MPI 5")),
        neighbours(2, launcher="openmpi", mpi=Mpi("Open MPI 5")),
    ),
    # ---- threads
    Case(
        WARN,
        "threads",
        "4 ranks with 8 threads each on 8 CPUs: 32 threads get in each other's way (OMP_NUM_THREADS is not set)",
        "export OMP_NUM_THREADS=2",
        neighbours(4, torch=Torch("2.9.0", threads=8), variables={}),
        neighbours(4),
    ),
    Case(
        WARN,
        "threads",
        "rank 0 may use 2 CPUs (OMP_NUM_THREADS is 8)",
        "export OMP_NUM_THREADS=2",
        job(rank(cpus=(0, 1))),
        job(rank(cpus=(0, 1), torch=Torch("2.9.0", threads=2))),
    ),
    Case(
        WARN,
        "threads",
        "(the affinity mask has 8, but the control group limits CPU time to 2)",
        "export OMP_NUM_THREADS=2",
        job(rank(cpu_quota=1.5)),
        job(rank(cpu_quota=8.0)),
    ),
    Case(
        WARN,
        "threads",
        "2 ranks with 1 thread each on 8 CPUs leave most of them idle",
        "export OMP_NUM_THREADS=4 (torchrun",
        neighbours(2, torch=Torch("2.9.0", threads=1)),
        neighbours(2, torch=Torch("2.9.0", threads=2)),
    ),
    Case(
        WARN,
        "threads",
        "16 ranks with 1 thread each share 8 CPUs",
        "start at most 8 ranks",
        neighbours(16, torch=Torch("2.9.0", threads=1)),
        neighbours(8),
    ),
    Case(
        WARN,
        "threads",
        "rank 0 may use 8 CPUs, though 16 per task were requested (SLURM_CPUS_PER_TASK)",
        "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK",
        pair(cpus_per_task=16),
        pair(cpus_per_task=8),
    ),
    Case(
        WARN,
        "threads",
        "mpirun bound 1 rank to 8 CPUs of the 64 that it was given",
        "mpirun --bind-to none",
        pair(launcher="openmpi", mpi=OPEN_MPI, parent_cpus=tuple(range(64))),
        pair(launcher="slurm", parent_cpus=tuple(range(64))),
    ),
    # ---- memory
    Case(
        WARN,
        "memory",
        "1.5 GiB available to 2 ranks",
        "--mem",
        neighbours(2, memory_bytes=3 * GIB // 2),
        neighbours(2, memory_bytes=2 * GIB),
    ),
    Case(WARN, "/dev/shm", "64 MiB: worker processes", "--shm-size", job(rank(shm_bytes=64 << 20, shm_free_bytes=64 << 20)), ALONE),
    Case(
        WARN,
        "/dev/shm",
        "only 0 MiB of 16.0 GiB are free",
        "ls -la /dev/shm",
        job(rank(shm_free_bytes=0)),
        job(rank(shm_free_bytes=GIB)),
    ),
    # ---- sharing
    Case(
        WARN,
        "sharing",
        "rank 0 cannot open the memory of rank 1 on the same node (/proc/9/fd/3: Permission denied), so they communicate "
        "over the network interface (gloo, unless MPI or NCCL is used), which is slower",
        "--pid=host",
        neighbours(2, unreachable={"1": "/proc/9/fd/3: Permission denied"}),
        neighbours(2),
    ),
    Case(
        WARN,
        "sharing",
        "cannot open the memory of rank 1",
        "--pid=host",
        neighbours(2, engine="gloo", unreachable={"1": "Permission denied"}),
        neighbours(2, engine="gloo"),
    ),
    Case(
        FAIL,
        "sharing",
        "but engine shm, which was requested, needs it",
        "unset UNISONO_ENGINE",
        neighbours(2, engine="shm", unreachable={"1": "Permission denied"}),
        neighbours(2, engine="auto", unreachable={"1": "Permission denied"}),
    ),
    # ---- GPUs
    Case(
        WARN,
        "gpus",
        "ranks 0-1 share GPU 0, which NCCL refuses",
        "--gpus-per-task=1",
        with_gpus(("0",), ("0",)),
        with_gpus(("0",), ("1",)),
    ),
    Case(
        WARN,
        "gpus",
        "ranks 0-1 share GPU 0",
        "start 1 rank on this node",
        with_gpus(("0",), ("0",), visible=("0",), torch=Torch("2.9.0", threads=4, cuda="12", num_gpus=1, gpu_ids=("GPU-a",))),
        with_gpus(("0",), ("0",), visible=("0",)),  # each task may be shown its own GPU as "0"
    ),
    Case(
        WARN,
        "gpus",
        "rank 0 has 2 GPUs of its own, but uses only one",
        "start 2 ranks",
        with_gpus(("0", "1")),
        with_gpus(("0",), visible=("0",)),
    ),
    Case(WARN, "gpus", "no rank uses GPU 1 of this node", "start 2 ranks", with_gpus(("0",)), with_gpus(("0",), ("1",))),
    Case(WARN, "gpus", "rank 1 has no GPU while others", "--gpus-per-task=1", with_gpus(("0",), ()), with_gpus(("0",), ("1",))),
    Case(
        WARN,
        "gpus",
        "1 GPU here, but torch 2.9.0 is a build without CUDA (rank 0)",
        "CUDA build",
        with_gpus(("0",), visible=("0",), torch=Torch("2.9.0", threads=8)),
        with_gpus(("0",), visible=("0",)),
    ),
    Case(
        FAIL,
        "gpus",
        "torch 2.9.0 (CUDA 12.8) cannot use the GPU of rank 0: the driver is too old",
        "nvidia-smi",
        with_gpus(("0",), visible=("0",), torch=Torch("2.9.0", threads=8, cuda="12.8", gpu_error="the driver is too old")),
        with_gpus(("0",), visible=("0",)),
    ),
    Case(
        WARN,
        "gpus",
        "nodes use different numbers of GPUs: 1 on node 0, 0 on node 1",
        "--gpus-per-node",
        job(rank(0, 2, gpus=("0",), our_gpus=("0",)), rank(1, 2)),
        pair(gpus=("0",), our_gpus=("0",)),
    ),
    # ---- names
    Case(
        WARN,
        "names",
        "host name n0 does not resolve on itself: Name or service not known",
        "/etc/hosts (ADDRESS n0)",
        job(rank(host_addresses=(), host_error="Name or service not known")),
        ALONE,
    ),
    Case(
        WARN,
        "names",
        "host name n0 resolves to 127.0.1.1 on itself",
        "(10.0.0.1 n0)",
        pair(host_addresses=("127.0.1.1",)),
        job(rank(host_addresses=("127.0.1.1",))),
    ),
    Case(
        WARN,
        "names",
        "host names of other nodes do not resolve on n0: n1 (unknown)",
        "UNISONO_RENDEZVOUS",
        job(rank(0, 2, unresolved={"n1": "unknown"}), rank(1, 2)),
        TWO,
    ),
    # ---- limits
    Case(
        WARN,
        "limits",
        "256 open files are allowed, but 264 may be needed",
        "ulimit -n 4096",
        pair(open_files=256),
        pair(open_files=264),
    ),
    Case(
        WARN,
        "limits",
        "InfiniBand (mlx5_0) needs locked memory, but only 64 KiB are allowed",
        "ulimit -l unlimited",
        job(rank(interfaces=(DEVICE,), locked_bytes=65536)),
        job(rank(interfaces=(DEVICE,), locked_bytes=None)),
    ),
    # ---- network
    Case(
        WARN,
        "network",
        "gloo uses eth0 (10.0.0.1, ethernet, 1 Gbit/s), though ib0 (10.1.0.1, InfiniBand, 100 Gbit/s) is up",
        "export UNISONO_RENDEZVOUS=10.1.0.1:",
        pair(interfaces=FABRIC, address="10.0.0.1"),
        pair(interfaces=FABRIC, address="10.1.0.1"),
    ),
    Case(
        WARN,
        "network",
        "though hsn0 (10.2.0.1, ethernet, 200 Gbit/s) is up",
        "UNISONO_RENDEZVOUS=10.2.0.1:",
        pair(interfaces=(SLOW, Interface("hsn0", "ethernet", True, 200_000, ("10.2.0.1",))), address="10.0.0.1"),
        pair(interfaces=(SLOW, Interface("hsn0", "ethernet", False, 200_000, ("10.2.0.1",))), address="10.0.0.1"),
    ),
    Case(
        WARN,
        "network",
        "though ib0 (10.1.0.1, InfiniBand, speed unknown) is up",
        "UNISONO_RENDEZVOUS",
        pair(interfaces=(replace(SLOW, speed_mbits=None), replace(FAST, speed_mbits=None)), address="10.0.0.1"),
        pair(
            interfaces=(replace(SLOW, speed_mbits=None), Interface("docker0", "virtual", True, 100_000, ("172.17.0.1",))),
            address="10.0.0.1",
        ),
    ),
    Case(
        WARN,
        "network",
        "though mlx5_0 (InfiniBand, 100 Gbit/s) is up",
        "it has no IP address",
        pair(interfaces=(SLOW, DEVICE), address="10.0.0.1"),
        pair(interfaces=(FAST, DEVICE), address="10.1.0.1"),
    ),
    Case(
        WARN,
        "network",
        "GLOO_SOCKET_IFNAME=ib0 is set but has no effect: gloo uses eth0",
        "connect through ib0",
        pair(interfaces=(SLOW,), address="10.0.0.1", variables={"GLOO_SOCKET_IFNAME": "ib0"}),
        pair(interfaces=(SLOW,), address="10.0.0.1", variables={"GLOO_SOCKET_IFNAME": "eth0"}),
    ),
    Case(
        WARN,
        "network",
        "Open MPI follows OMPI_MCA_btl_tcp_if_include=eth0: eth0 (10.0.0.1, ethernet, 1 Gbit/s), though ib0",
        "unset OMPI_MCA_btl_tcp_if_include, or set it to ib0",
        pair(
            launcher="openmpi",
            mpi=OPEN_MPI,
            interfaces=FABRIC,
            address="10.1.0.1",
            variables={"OMPI_MCA_btl_tcp_if_include": "eth0"},
        ),
        pair(
            launcher="openmpi",
            mpi=OPEN_MPI,
            interfaces=FABRIC,
            address="10.1.0.1",
            variables={"OMPI_MCA_btl_tcp_if_include": "ib0"},
        ),
    ),
    Case(
        FAIL,
        "network",
        "NCCL_SOCKET_IFNAME=bond0 names no interface of this node",
        "use one of: eth0",
        pair(our_gpus=("0",), variables={"NCCL_SOCKET_IFNAME": "bond0"}),
        pair(our_gpus=("0",), variables={"NCCL_SOCKET_IFNAME": "eth"}),  # NCCL takes beginnings
    ),
    Case(
        WARN,
        "network",
        "NCCL_IB_DISABLE is set, so NCCL does not use mlx5_0 (InfiniBand, 100 Gbit/s)",
        "unset NCCL_IB_DISABLE",
        pair(our_gpus=("0",), interfaces=(FAST, DEVICE), address="10.1.0.1", variables={"NCCL_IB_DISABLE": "1"}),
        pair(our_gpus=("0",), interfaces=(FAST, DEVICE), address="10.1.0.1", variables={"NCCL_IB_DISABLE": "0"}),
    ),
    # ---- engines
    Case(
        FAIL,
        "bandwidth",
        "engine mpi, ranks 0 and 1: it cannot be loaded",
        "pip install mpi4py",
        replace(TWO, measurements=(Measurement("mpi", (0, 1), True, error="it cannot be loaded; pip install mpi4py"),)),
        replace(TWO, measurements=(Measurement("mpi", (0, 1), True, 5.0, 2.0),)),
    ),
    Case(
        WARN,
        "bandwidth",
        "engine gloo, ranks 0 and 1: refused",
        "UNISONO_ENGINE=gloo",
        replace(TWO, measurements=(Measurement("gloo", (0, 1), False, error="refused"),)),
        replace(TWO, measurements=(Measurement("gloo", (0, 1), False, 1.0, 50.0),)),
    ),
)


def matching(case: Case, facts: Job) -> list[Finding]:
    return [one for one in examine(facts) if (one.level, one.check) == (case.level, case.check) and case.fact in one.fact]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.check}: {case.fact[:50]}")
def test_a_finding_appears_with_its_remedy_and_only_where_it_should(case: Case) -> None:
    found = matching(case, case.bad)
    assert found, [one.fact for one in examine(case.bad)]
    assert all(case.remedy in one.remedy for one in found), found
    assert not matching(case, case.good)


HEALTHY = {
    "alone": ALONE,
    "two nodes": TWO,
    "four ranks of a node": neighbours(4),
    "mpirun": MPI_TWO,
    "GPUs": with_gpus(("0",), ("1",)),
    "bound GPUs": with_gpus(("0",), ("0",), visible=("0",)),
    "as asked": replace(TWO, num_expected=2),
    "several nodes on one machine": pair(address="127.0.0.1"),
    "without /proc and /sys": pair(interfaces=(), memory_bytes=None, shm_bytes=None, shm_free_bytes=None, open_files=None),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_where_all_is_well_nothing_is_warned_about(name: str) -> None:
    findings = examine(HEALTHY[name])
    assert {one.level for one in findings} == {OK}, [one for one in findings if one.level != OK]
    assert not any(one.remedy for one in findings)
    assert {"ranks", "software", "mpi", "threads", "gpus", "names", "limits", "network"} <= {one.check for one in findings}


def test_every_warning_says_what_to_do() -> None:
    for case in CASES:
        assert all(one.remedy for one in examine(case.bad) if one.level != OK)


def test_findings_of_a_node_name_it() -> None:
    crowded = replace(rank(1, 2), torch=Torch("2.9.0", threads=64))
    assert [one.node for one in examine(job(rank(0, 2), crowded)) if one.level == WARN] == ["node 1"]


def test_measurements_say_which_interface_carried_them() -> None:
    measured = replace(TWO, origin="two processes", measurements=(Measurement("gloo", (0, 1), True, 0.117, 80.4),))
    shown = {one.check: one.fact for one in examine(measured)}
    assert shown["engine"] == "two processes"
    assert shown["bandwidth"] == "engine gloo: 0.117 GB/s, 80 us between ranks 0 and 1, from node 0 to node 1, over eth0"


def test_no_rank_answered() -> None:
    """Ranks that doctor itself started may all fail; then that is the finding, and the checks have nothing to say."""
    assert {one.level for one in examine(Job((), "local", 1))} <= {OK}
