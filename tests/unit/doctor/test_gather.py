"""Where `unisono doctor` gets its facts: files of the system, child processes, and threads that may hang."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from unisono.cluster.launchers.local import resolve as local
from unisono.cluster.machine import cgroup
from unisono.cluster.topology import Overrides, Topology
from unisono.doctor import installed_mpi, interfaces, peers
from unisono.doctor.aside import Aside
from unisono.doctor.bandwidth import BUDGET_S, LARGEST_BYTES, MAX_MESSAGES, TRIAL_BYTES, _plan
from unisono.doctor.engines import chosen_pairs
from unisono.doctor.facts import Facts, Interface, Measurement, Mpi, Torch, describe_ranks
from unisono.doctor.finding import FAIL, Finding, finding_from_error
from unisono.doctor.gather import gather, resolve_name
from unisono.doctor.local_ranks import local_ranks
from unisono.errors import UsageError


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


# ---- control groups ------------------------------------------------------------------------------------------------


def test_the_narrowest_limit_of_version_2_counts(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "own": "0::/slurm/job_7\n",
            "root/cpu.max": "max 100000\n",
            "root/slurm/cpu.max": "250000 100000\n",
            "root/slurm/job_7/cpu.max": "400000 100000\n",
            "root/slurm/memory.max": "8000\n",
            "root/slurm/memory.current": "3000\n",
            "root/slurm/memory.stat": "anon 5\ninactive_file 1000\n",
            "root/slurm/job_7/memory.max": "max\n",
            "root/slurm/job_7/memory.current": "2000\n",
        },
    )
    assert cgroup.cpu_quota(tmp_path / "root", tmp_path / "own") == 2.5
    assert cgroup.memory_left(tmp_path / "root", tmp_path / "own") == 6000


def test_version_1_and_a_path_that_only_the_host_knows(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "own": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n",
            "root/cpu,cpuacct/cpu.cfs_quota_us": "150000\n",
            "root/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "root/memory/memory.limit_in_bytes": "8000\n",
            "root/memory/memory.usage_in_bytes": "9000\n",
        },
    )
    assert cgroup.cpu_quota(tmp_path / "root", tmp_path / "own") == 1.5
    assert cgroup.memory_left(tmp_path / "root", tmp_path / "own") == 0


def test_no_limit_and_no_control_groups_at_all(tmp_path: Path) -> None:
    write(tmp_path, {"own": "2:cpu:/\n", "root/cpu/cpu.cfs_quota_us": "-1\n", "root/cpu/cpu.cfs_period_us": "100000\n"})
    for own in ("own", "nothing"):
        assert cgroup.cpu_quota(tmp_path / "root", tmp_path / own) is None
        assert cgroup.memory_left(tmp_path / "root", tmp_path / own) is None


# ---- interfaces ----------------------------------------------------------------------------------------------------


def test_interfaces_by_kind_and_speed(tmp_path: Path) -> None:
    up = {"flags": "0x1003\n", "operstate": "up\n"}
    shown: dict[str, dict[str, str]] = {
        "x-eth": {**up, "type": "1\n", "speed": "25000\n", "device/vendor": "0x15b3\n"},
        "x-bond": {**up, "type": "1\n", "speed": "-1\n", "bonding/mode": "802.3ad 4\n"},
        "x-vlan": {**up, "type": "1\n", "speed": "10000\n", "uevent": "DEVTYPE=vlan\nINTERFACE=x-vlan\n"},
        "x-bridge": {**up, "type": "1\n", "speed": "10000\n", "bridge/stp_state": "0\n"},
        "x-ipoib": {"flags": "0x1003\n", "operstate": "unknown\n", "type": "32\n", "speed": "100000\n"},
        "x-down": {"flags": "0x1002\n", "operstate": "down\n", "type": "1\n", "device/vendor": "0x15b3\n"},
    }
    for name, files in shown.items():
        write(tmp_path / "net" / name, files)
    write(tmp_path / "rdma/mlx5_0/ports/1", {"state": "4: ACTIVE\n", "link_layer": "InfiniBand\n", "rate": "100 Gb/sec (4X EDR)\n"})
    write(tmp_path / "rdma/mlx5_1/ports/1", {"state": "1: DOWN\n", "link_layer": "InfiniBand\n", "rate": "10 Gb/sec\n"})
    write(tmp_path / "rdma/mlx5_2/ports/1", {"state": "4: ACTIVE\n", "link_layer": "Ethernet\n", "rate": "100 Gb/sec\n"})
    found = {
        one.name: (one.kind, one.up, one.speed_mbits) for one in interfaces.find_interfaces(tmp_path / "net", tmp_path / "rdma")
    }
    assert found == {
        "x-eth": ("ethernet", True, 25000),
        "x-bond": ("ethernet", True, None),
        "x-vlan": ("ethernet", True, 10000),
        "x-bridge": ("virtual", True, 10000),
        "x-ipoib": ("infiniband", True, 100000),
        "x-down": ("ethernet", False, None),
        "mlx5_0": ("rdma", True, 100000),
    }


def test_a_system_without_these_files_has_none(tmp_path: Path) -> None:
    assert interfaces.find_interfaces(tmp_path / "net", tmp_path / "rdma") == ()


@pytest.mark.skipif(not interfaces.NET.is_dir(), reason="interfaces are read from Linux's /sys")
def test_the_real_loopback_has_its_address() -> None:
    (loopback,) = [one for one in interfaces.find_interfaces() if one.kind == "loopback"]
    assert loopback.up and "127.0.0.1" in loopback.addresses


# ---- MPI -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("Open MPI v5.0.8", "Open MPI"),
        ("Open MPI 4.1.6", "Open MPI"),
        ("MPICH Version: 4.3.0", "MPICH"),
        ("Intel(R) MPI Library 2021.14 for Linux* OS", "MPICH"),
        ("MPI VERSION : CRAY MPICH version 8.1.29", "MPICH"),
        ("MVAPICH Version : 4.0", "MPICH"),
        ("Fujitsu MPI", ""),
    ],
)
def test_which_libraries_understand_each_other(name: str, family: str) -> None:
    assert installed_mpi.mpi_family(name) == family


def test_what_speaks_against_starting_mpi() -> None:
    assert installed_mpi.is_usable(Mpi("Open MPI 5", "4", "Open MPI v5"))
    assert installed_mpi.is_usable(Mpi("", "4", "Open MPI v5"))
    assert installed_mpi.is_usable(Mpi("MPICH", "4", "a library that nobody knows"))
    assert not installed_mpi.is_usable(Mpi("MPICH", "4", "Open MPI v5"))
    assert not installed_mpi.is_usable(Mpi("MPICH", "4", "MPICH", error="no answer"))
    assert not installed_mpi.is_usable(Mpi("MPICH"))


def test_when_a_job_starts_mpi() -> None:
    mpi = Mpi("Open MPI 5", "4", "Open MPI v5")
    two = [Facts(r, 2, "openmpi", f"n{r}", f"n{r}", mpi=mpi) for r in (0, 1)]
    one_node = [Facts(r, 2, "openmpi", "n", "n", mpi=mpi) for r in (0, 1)]
    assert installed_mpi.needs_mpi(two)
    assert not installed_mpi.needs_mpi(one_node)
    assert installed_mpi.needs_mpi([Facts(0, 1, "slurm", "n", "n", engine="mpi")])
    assert not installed_mpi.needs_mpi([two[0], Facts(1, 2, "openmpi", "n1", "n1", mpi=Mpi("Open MPI 5"))])


@pytest.mark.parametrize(
    ("launcher", "env", "shown"),
    [
        ("slurm", {"OMPI_VERSION": "5.0.8"}, ""),
        ("openmpi", {"OMPI_VERSION": "5.0.8"}, "Open MPI 5.0.8"),
        ("openmpi", {}, "Open MPI"),
        ("pmi", {"I_MPI_HYDRA_UUID": "1"}, "Intel MPI"),
        ("pmi", {"PALS_APID": "1"}, "Cray MPICH"),
        ("pmi", {}, "MPICH"),
    ],
)
def test_mpirun_is_attributed_to_its_mpi(launcher: str, env: dict[str, str], shown: str) -> None:
    assert installed_mpi._launcher(env, launcher) == shown


@pytest.mark.parametrize(
    ("program", "answer", "why"),
    [
        ("print('noise'); print('[3, 4]')", [3, 4], ""),
        ("import sys; sys.exit('libmpi.so.40: cannot open shared object file')", [], "libmpi.so.40: cannot open"),
        ("raise SystemExit(7)", [], "ended with code 7"),
        ("print('hello')", [], "answered 'hello'"),
        ("import os; os.kill(os.getpid(), 9)", [], "ended with code -9"),
        ("import time; time.sleep(60)", [], "no answer within 1 s"),
    ],
)
def test_a_child_that_fails_is_an_answer_too(program: str, answer: list[int], why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed_mpi, "LIMIT_S", 1.0 if "sleep" in program else 30.0)
    found, error = installed_mpi._ask(program)
    assert found == answer
    assert answer or why in error, error


# ---- threads that may hang -----------------------------------------------------------------------------------------


def test_work_aside_gives_its_result_or_its_error() -> None:
    aside = Aside()
    assert aside.run(lambda: 7, 10.0) == 7
    with pytest.raises(UsageError, match="wrong"):
        aside.run(raise_usage_error, 10.0)
    assert not aside.busy


def raise_usage_error() -> int:
    raise UsageError("wrong")


def test_work_that_hangs_is_left_and_says_where_it_is() -> None:
    aside, resume = Aside(), threading.Event()
    try:
        assert aside.run(resume.wait, 0.05) is None
        assert aside.busy
        assert "threading.py" in aside.where() and "wait" in aside.where()
    finally:
        resume.set()
    assert aside.run(lambda: 1, 10.0) == 1


def test_a_name_server_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()

    def slow(*args: object, **named: object) -> list[object]:
        answer.wait()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    monkeypatch.setattr("unisono.doctor.gather.RESOLVE_LIMIT_S", 0.05)
    try:
        assert resolve_name("far") == ((), "no answer within 0.05 s")
    finally:
        answer.set()


def test_names_that_resolve_and_names_that_do_not() -> None:
    addresses, error = resolve_name("localhost")
    assert "127.0.0.1" in addresses or "::1" in addresses
    assert not error
    addresses, error = resolve_name("no-such-host.invalid")
    assert not addresses and error


# ---- peers ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="only Linux has this memory")
def test_memory_of_a_neighbour_can_be_opened_or_not() -> None:
    ranks = [Facts(r, 3, "unisono", node, "h", pid=os.getpid()) for r, node in enumerate(("a", "a", "b"))]
    with peers.offer_memory(b"proof of 1") as fd:
        good = [b"", b"proof of 1", b""]
        assert peers.find_unreachable(ranks[0], ranks, [0, fd, 0], good) == {}
        wrong = peers.find_unreachable(ranks[0], ranks, [0, fd, 0], [b"", b"proof of 2", b""])
        assert list(wrong) == ["1"] and "another process" in wrong["1"]
    closed = peers.find_unreachable(ranks[0], ranks, [0, fd, 0], good)
    assert list(closed) == ["1"] and "No such file" in closed["1"]
    assert peers.find_unreachable(ranks[2], ranks, [0, fd, 0], good) == {}, "it has no neighbour"
    assert peers.find_unreachable(ranks[0], ranks, [-1, -1, -1], good) == {}, "a system without such memory"


def test_one_rank_of_a_node_asks_for_the_other_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(name: str) -> tuple[tuple[str, ...], str]:
        asked.append(name)
        return ((), "unknown") if name == "h2" else (("10.0.0.1",), "")

    monkeypatch.setattr(peers, "resolve_name", answer)
    ranks = [
        Facts(r, 4, "slurm", node, host) for r, (node, host) in enumerate([("a", "h0"), ("a", "h0"), ("b", "h1"), ("c", "h2")])
    ]
    assert peers.find_unresolved(ranks[0], ranks) == {"h2": "unknown"}
    assert asked == ["h1", "h2"]
    assert peers.find_unresolved(ranks[1], ranks) == {}
    assert asked == ["h1", "h2"]


# ---- the whole -----------------------------------------------------------------------------------------------------


def test_facts_survive_the_way_through_json() -> None:
    facts = Facts(
        1,
        2,
        "slurm",
        "node 0",
        "h",
        cpus=(0, 1),
        variables={"OMP_NUM_THREADS": "2"},
        gpus=("0",),
        interfaces=(Interface("eth0", "ethernet", True, 1000, ("10.0.0.1",)),),
        torch=Torch("2.9.0", gpu_ids=("GPU-1",)),
        mpi=Mpi("Open MPI", size=2),
        unreachable={"0": "no"},
    )
    assert Facts.from_plain(json.loads(json.dumps(facts.plain()))) == facts
    measurement = Measurement("shm", (0, 1), True, 1.0, 2.0)
    plain = {"engine": "shm", "ranks": [0, 1], "chosen": True, "gb_per_s": 1.0, "latency_us": 2.0, "error": ""}
    assert Measurement.from_plain(plain) == measurement


def test_this_process() -> None:
    at: Topology = local({}, Overrides())
    facts = gather(at, {"OMP_NUM_THREADS": "3", "HOME": "/", "SLURM_CPUS_PER_TASK": "4"}, "127.0.0.1")
    assert (facts.rank, facts.size, facts.pid, facts.node) == (0, 1, os.getpid(), "node 0")
    assert facts.variables == {"OMP_NUM_THREADS": "3"}
    assert facts.cpus_per_task is None, "only a task of SLURM has been given CPUs by it"
    assert facts.cpus and facts.torch.version and facts.torch.threads
    assert facts.executable == sys.executable


@pytest.mark.parametrize(("second", "pairs"), [("a", [(0, 1), (0, 2)]), ("b", [(0, 1)])])
def test_pairs_that_are_measured(second: str, pairs: list[tuple[int, int]]) -> None:
    ranks = [Facts(r, 4, "slurm", node, "h") for r, node in enumerate(("a", second, "b", "b"))]
    assert chosen_pairs(ranks) == pairs


@pytest.mark.parametrize("gb_per_s", [0.001, 0.0125, 0.125, 1.0, 12.0, 100.0])
def test_a_measurement_fits_its_budget_on_any_network(gb_per_s: float) -> None:
    num_bytes, times = _plan(TRIAL_BYTES / (gb_per_s * 1e9))
    assert TRIAL_BYTES <= num_bytes <= LARGEST_BYTES and 1 <= times <= MAX_MESSAGES
    assert num_bytes * times / (gb_per_s * 1e9) <= max(BUDGET_S, TRIAL_BYTES / (gb_per_s * 1e9)) * 1.01


def test_ranks_as_text() -> None:
    assert describe_ranks([3]) == "rank 3"
    assert describe_ranks([5, 0, 1, 2, 7, 8]) == "ranks 0-2, 5, 7-8"


def test_an_error_becomes_a_finding_with_its_own_remedy() -> None:
    assert finding_from_error(FAIL, "mpi", "it broke (here); mend it; or not\nstack", "-") == Finding(
        FAIL, "mpi", "it broke (here)", "mend it; or not"
    )
    assert finding_from_error(FAIL, "mpi", "it broke", "mend it").remedy == "mend it"


def test_local_ranks_that_give_no_report_are_a_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A Python that cannot even start: the launcher's last word is told."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with local_ranks(2, bandwidth=True) as started:
        answer = started.answer()
    (problem,) = answer.problems
    assert problem.level == FAIL and "gave no report (code 1)" in problem.fact
    assert answer.ranks == ()
