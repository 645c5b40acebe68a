"""One program, unchanged, gives the same answer however it is started.

Where others start the same launcher with real interpreters (test_train_launchers.py, test_doctor.py), the ranks are forked."""

from __future__ import annotations

import math
import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.system.fork_server import ForkServer
from tests.system.hosts import Host
from tests.system.ports import free_port
from tests.system.processes import Outcome, plain_environment, run_together
from tests.system.slurm import SlurmCluster

BIN = Path(sys.executable).parent
PYTHON, UNISONO, MPIRUN, TORCHRUN = (str(BIN / name) for name in ("python", "unisono", "mpirun", "torchrun"))
HELLO = str(Path(__file__).resolve().parents[2] / "examples" / "hello.py")
AS_ROOT = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
TWO_JOBS = str(Path(__file__).parent / "programs" / "two_jobs.py")
LIMIT_S = 100.0


def expected_answer() -> str:
    """Counted in another way than the program does: in each row the points up to the edge of the circle."""
    points = 4000
    inside = sum((math.isqrt((2 * points) ** 2 - (2 * row + 1) ** 2 - 1) + 1) // 2 for row in range(points))
    return f"pi is about {4 * inside / points**2:.7f}: {inside} of {points**2} points are in the circle"


def run(*command: str, environment: Mapping[str, str] | None = None) -> Outcome:
    return run_together([command], environment or plain_environment(), LIMIT_S)[0]


def check(printed: str, num_ranks: int, launcher: str, engine: str) -> None:
    """The answer once, exactly; a word from every rank; who started them and what carried the messages."""
    answers = re.findall(r"pi is about .*", printed)
    assert answers == [expected_answer()], printed
    ranks = [(int(rank), int(size)) for rank, size in re.findall(r"rank (\d+) of (\d+) counts", printed)]
    assert sorted(ranks) == [(rank, num_ranks) for rank in range(num_ranks)], printed
    origin = re.findall(r"unisono: (\d+ process.*)", printed)
    assert len(origin) == 1, printed
    assert f"started by {launcher}" in origin[0], printed
    assert f"engine {engine}" in origin[0], printed


def check_one(outcome: Outcome, num_ranks: int, launcher: str, engine: str) -> None:
    assert outcome.code == 0, str(outcome)
    check(outcome.output, num_ranks, launcher, engine)


def test_plain_python() -> None:
    check_one(run(PYTHON, HELLO), 1, "local", "single")


def test_our_launcher() -> None:
    check_one(run(UNISONO, "run", "-n", "3", HELLO), 3, "unisono", "shm")


def test_mpirun(fork_server: ForkServer) -> None:
    # Without the second flag Open MPI refuses more ranks than cores.
    check_one(run(MPIRUN, *AS_ROOT, "--oversubscribe", "-n", "3", *fork_server.stand_in([HELLO])), 3, "openmpi", "shm")


def test_torchrun() -> None:
    port = f"--master-port={free_port()}"
    check_one(run(TORCHRUN, "--nproc-per-node", "2", port, HELLO), 2, "torchrun", "shm")


def test_two_jobs_on_one_node_do_not_meet(fork_server: ForkServer, tmp_path: Path) -> None:
    jobs = [("left", "right"), ("right", "left")]
    commands = [[UNISONO, "run", "-n", "2", *fork_server.stand_in([TWO_JOBS, *job, str(tmp_path)])] for job in jobs]
    left, right = run_together(commands, plain_environment(), LIMIT_S)
    check_met(left, "left")
    check_met(right, "right")


def check_met(outcome: Outcome, name: str) -> None:
    assert outcome.code == 0, str(outcome)
    met = sorted(re.findall(rf"{name} \d met .*", outcome.output))
    assert met == [f"{name} {rank} met {name} {name}" for rank in (0, 1)], str(outcome)


@pytest.mark.hosts
@pytest.mark.parametrize(
    ("on_each", "allreduce"),
    [(1, "auto (recursive_doubling up to "), (2, "node_aware (shm inside a node, gloo between nodes: auto (")],
)
def test_two_hosts_without_a_scheduler(two_hosts: list[Host], on_each: int, allreduce: str) -> None:
    rendezvous = f"{two_hosts[0].address}:29400"
    commands = [
        host.command(
            UNISONO, "run", "-n", str(on_each), "--nodes", "2", "--node-rank", str(node), "--rendezvous", rendezvous, HELLO
        )
        for node, host in enumerate(two_hosts)
    ]
    outcomes = run_together(commands, plain_environment(), LIMIT_S)
    assert [outcome.code for outcome in outcomes] == [0, 0], "\n".join(map(str, outcomes))
    check("\n".join(outcome.output for outcome in outcomes), 2 * on_each, "unisono", "gloo")
    assert f"all-reduce {allreduce}" in outcomes[0].output, str(outcomes[0])


@pytest.mark.slurm
@pytest.mark.parametrize(("nodes", "tasks"), [(2, 4), (2, 3)], ids=["even", "uneven"])
def test_srun(slurm_cluster: SlurmCluster, fork_server: ForkServer, nodes: int, tasks: int) -> None:
    """The nodes are one machine with one host name, and yet the engine must not be the one for one machine."""
    outcome = run("srun", f"-N{nodes}", f"-n{tasks}", *fork_server.stand_in([HELLO]), environment=slurm_cluster.environment)
    check_one(outcome, tasks, "slurm", "gloo")


@pytest.mark.slurm
def test_mpirun_inside_sbatch(slurm_cluster: SlurmCluster, fork_server: ForkServer) -> None:
    """mpirun starts its daemons by a SLURM step, so that its ranks see SLURM's variables too: those of the daemons."""
    job = slurm_cluster.submit(shlex.join([MPIRUN, *AS_ROOT, "-n", "2", *fork_server.stand_in([HELLO])]), "-N2", "-n2")
    check_one(job.finish(LIMIT_S), 2, "openmpi", "mpi")


@pytest.mark.slurm
def test_torchrun_inside_srun(slurm_cluster: SlurmCluster, fork_server: ForkServer) -> None:
    rendezvous = ["--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=n1:{free_port()}"]
    command = ["srun", "-N2", "-n2", TORCHRUN, *rendezvous, "--no-python", *fork_server.stand_in([HELLO])]
    check_one(run(*command, environment=slurm_cluster.environment), 4, "torchrun", "gloo")


@pytest.mark.slurm
def test_python_in_a_batch_script_is_not_a_rank(slurm_cluster: SlurmCluster, fork_server: ForkServer) -> None:
    """The script of a job with four tasks has rank variables, but srun has not been called: one process, alone."""
    job = slurm_cluster.submit(shlex.join(fork_server.stand_in([HELLO])), "-N2", "-n4")
    check_one(job.finish(LIMIT_S), 1, "local", "single")


@pytest.mark.slurm
def test_python_in_the_shell_of_an_allocation_is_not_a_rank(slurm_cluster: SlurmCluster, fork_server: ForkServer) -> None:
    outcome = run("salloc", "-N2", "-n4", *fork_server.stand_in([HELLO]), environment=slurm_cluster.environment)
    check_one(outcome, 1, "local", "single")


@pytest.mark.slurm
def test_two_steps_of_one_job_do_not_meet(slurm_cluster: SlurmCluster, fork_server: ForkServer, tmp_path: Path) -> None:
    """They share the job's number and the node; only the number of the step differs."""

    def step(*names: str) -> str:
        program = fork_server.stand_in([TWO_JOBS, *names, str(tmp_path)])
        return shlex.join(["srun", "--overlap", "-N1", "-n2", "-wn1", *program])

    script = f"{step('left', 'right')} & left=$!\n{step('right', 'left')}\nwait $left"
    outcome = slurm_cluster.submit(script, "-N1", "-n2", "-wn1").finish(LIMIT_S)
    check_met(outcome, "left")
    check_met(outcome, "right")
