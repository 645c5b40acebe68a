"""One program, unchanged, gives the same answer however it is started."""

from __future__ import annotations

import math
import os
import re
import shlex
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.system.hosts import Host
from tests.system.processes import Outcome, plain_environment, run_together
from tests.system.slurm import SlurmCluster

BIN = Path(sys.executable).parent
PYTHON, UNISONO, MPIRUN, TORCHRUN = (str(BIN / name) for name in ("python", "unisono", "mpirun", "torchrun"))
HELLO = str(Path(__file__).resolve().parents[2] / "examples" / "hello.py")
AS_ROOT = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
LIMIT_S = 60.0

TWO_JOBS = """
import sys, time
from pathlib import Path
import unisono as un

here, other, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
with un.connect() as comm:
    met = comm.allgather_object(here)
    (folder / f"{here}{comm.rank}").touch()
    deadline = time.monotonic() + 40
    while not (folder / f"{other}{comm.rank}").exists():  # so that both jobs are connected at the same time
        if time.monotonic() > deadline:
            raise TimeoutError(f"{here} waits for {other} in vain")
        time.sleep(0.05)
    print(f"{here} {comm.rank} met {' '.join(met)}", flush=True)
"""


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


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def test_plain_python() -> None:
    check_one(run(PYTHON, HELLO), 1, "local", "single")


def test_our_launcher() -> None:
    check_one(run(UNISONO, "run", "-n", "4", HELLO), 4, "unisono", "shm")


def test_mpirun() -> None:
    # Without the second flag Open MPI refuses more ranks than cores.
    check_one(run(MPIRUN, *AS_ROOT, "--oversubscribe", "-n", "4", PYTHON, HELLO), 4, "openmpi", "shm")


def test_torchrun() -> None:
    port = f"--master-port={free_port()}"
    check_one(run(TORCHRUN, "--nproc-per-node", "4", port, HELLO), 4, "torchrun", "shm")


def test_two_jobs_on_one_node_do_not_meet(tmp_path: Path) -> None:
    program = tmp_path / "two_jobs.py"
    program.write_text(TWO_JOBS)
    jobs = [("left", "right"), ("right", "left")]
    commands = [[UNISONO, "run", "-n", "2", str(program), *job, str(tmp_path)] for job in jobs]
    left, right = run_together(commands, plain_environment(), LIMIT_S)
    check_met(left, "left")
    check_met(right, "right")


def check_met(outcome: Outcome, name: str) -> None:
    assert outcome.code == 0, str(outcome)
    met = sorted(re.findall(rf"{name} \d met .*", outcome.output))
    assert met == [f"{name} {rank} met {name} {name}" for rank in (0, 1)], str(outcome)


@pytest.mark.hosts
def test_two_hosts_without_a_scheduler(two_hosts: list[Host]) -> None:
    rendezvous = f"{two_hosts[0].address}:29400"
    commands = [
        host.command(UNISONO, "run", "-n", "2", "--nodes", "2", "--node-rank", str(node), "--rendezvous", rendezvous, HELLO)
        for node, host in enumerate(two_hosts)
    ]
    outcomes = run_together(commands, plain_environment(), LIMIT_S)
    assert [outcome.code for outcome in outcomes] == [0, 0], "\n".join(map(str, outcomes))
    check("\n".join(outcome.output for outcome in outcomes), 4, "unisono", "gloo")


@pytest.mark.slurm
@pytest.mark.parametrize(("nodes", "tasks"), [(2, 4), (2, 3)], ids=["even", "uneven"])
def test_srun(slurm_cluster: SlurmCluster, nodes: int, tasks: int) -> None:
    """The nodes are one machine with one host name, and yet the engine must not be the one for one machine."""
    outcome = run("srun", f"-N{nodes}", f"-n{tasks}", PYTHON, HELLO, environment=slurm_cluster.environment)
    check_one(outcome, tasks, "slurm", "gloo")


@pytest.mark.slurm
def test_mpirun_inside_sbatch(slurm_cluster: SlurmCluster) -> None:
    """mpirun starts its daemons by a SLURM step, so that its ranks see SLURM's variables too: those of the daemons."""
    job = slurm_cluster.submit(shlex.join([MPIRUN, *AS_ROOT, "-n", "4", PYTHON, HELLO]), "-N2", "-n4")
    check_one(job.finish(LIMIT_S), 4, "openmpi", "mpi")


@pytest.mark.slurm
def test_torchrun_inside_srun(slurm_cluster: SlurmCluster) -> None:
    rendezvous = ["--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=n1:{free_port()}"]
    command = ["srun", "-N2", "-n2", TORCHRUN, *rendezvous, HELLO]
    check_one(run(*command, environment=slurm_cluster.environment), 4, "torchrun", "gloo")


@pytest.mark.slurm
def test_python_in_a_batch_script_is_not_a_rank(slurm_cluster: SlurmCluster) -> None:
    """The script of a job with four tasks has rank variables, but srun has not been called: one process, alone."""
    job = slurm_cluster.submit(shlex.join([PYTHON, HELLO]), "-N2", "-n4")
    check_one(job.finish(LIMIT_S), 1, "local", "single")


@pytest.mark.slurm
def test_python_in_the_shell_of_an_allocation_is_not_a_rank(slurm_cluster: SlurmCluster) -> None:
    outcome = run("salloc", "-N2", "-n4", PYTHON, HELLO, environment=slurm_cluster.environment)
    check_one(outcome, 1, "local", "single")


@pytest.mark.slurm
def test_two_steps_of_one_job_do_not_meet(slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    """They share the job's number and the node; only the number of the step differs."""
    program = tmp_path / "two_jobs.py"
    program.write_text(TWO_JOBS)
    step = shlex.join(["srun", "--overlap", "-N1", "-n2", "-wn1", PYTHON, str(program)])
    folder = shlex.quote(str(tmp_path))
    script = f"{step} left right {folder} & left=$!\n{step} right left {folder}\nwait $left"
    outcome = slurm_cluster.submit(script, "-N1", "-n2", "-wn1").finish(LIMIT_S)
    check_met(outcome, "left")
    check_met(outcome, "right")
