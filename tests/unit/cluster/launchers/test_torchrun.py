"""torchrun, and torch's variables set by hand."""

from __future__ import annotations

import pytest

from tests.unit.cluster import environments as envs
from unisono.cluster.launchers import torchrun
from unisono.cluster.topology import NotThisLauncher, Overrides, Topology
from unisono.errors import UsageError

NONE = Overrides()
BY_HAND = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


def topology(env: envs.Env, overrides: Overrides = NONE) -> Topology:
    answer = torchrun.resolve(env, overrides)
    assert isinstance(answer, Topology), answer
    return answer


def without(env: envs.Env, *names: str) -> envs.Env:
    return {name: value for name, value in env.items() if name not in names}


def test_ranks_of_torchrun_know_their_place() -> None:
    found = [topology(envs.torchrun_in_srun(rank)) for rank in range(4)]
    assert [(t.global_rank, t.local_rank, t.node_rank) for t in found] == [(0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 1)]
    assert {(t.launcher, t.world_size, t.local_size, t.num_nodes, t.address) for t in found} == {("torchrun", 4, 2, 2, "n1")}
    assert len({(t.port, t.token) for t in found}) == 1


def test_the_port_is_not_that_of_torch() -> None:
    assert topology(envs.torchrun(0)).port != 41003
    assert topology(envs.torchrun(0), Overrides(port=7000)).port == 7000


@pytest.mark.parametrize(
    ("name", "other"),
    [("TORCHELASTIC_RUN_ID", "x"), ("TORCHELASTIC_RESTART_COUNT", "1"), ("MASTER_PORT", "41004"), ("MASTER_ADDR", "n9")],
)
def test_another_job_or_attempt_has_another_token(name: str, other: str) -> None:
    assert topology(envs.torchrun(0)).token != topology({**envs.torchrun(0), name: other}).token


def test_by_hand_on_one_machine() -> None:
    found = topology(BY_HAND)
    assert (found.global_rank, found.local_rank, found.local_size, found.node_rank, found.num_nodes) == (1, 1, 2, 0, 1)
    assert found.address == "localhost"


def test_by_hand_across_nodes() -> None:
    env = {**BY_HAND, "WORLD_SIZE": "4", "MASTER_ADDR": "n1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    found = topology(env)
    assert (found.local_rank, found.local_size, found.node_rank, found.num_nodes) == (1, 2, None, None)
    with pytest.raises(UsageError, match="LOCAL_RANK, LOCAL_WORLD_SIZE are missing"):
        torchrun.resolve({**BY_HAND, "MASTER_ADDR": "n1"}, NONE)
    with pytest.raises(UsageError, match="LOCAL_WORLD_SIZE is missing"):
        torchrun.resolve({**BY_HAND, "LOCAL_RANK": "1"}, NONE)


@pytest.mark.parametrize("env", [envs.srun(1), envs.open_mpi_in_sbatch(1), envs.intel_mpi_in_sbatch(1)])
def test_copies_of_another_launchers_variables_are_left_to_it(env: envs.Env) -> None:
    copies = {**BY_HAND, "WORLD_SIZE": "3", "MASTER_ADDR": "n1"}
    answer = torchrun.resolve({**env, **copies}, NONE)
    assert isinstance(answer, NotThisLauncher)
    assert "copies of" in answer.reason
    assert isinstance(torchrun.resolve({**env, **copies, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, NONE), Topology)


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "LOCAL_WORLD_SIZE"])
def test_half_set_variables_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"variables of torchrun are incomplete: .* {name} is missing"):
        torchrun.resolve(without(envs.torchrun(0), name), NONE)


def test_what_a_batch_script_exports_for_all_is_no_rank() -> None:
    exported = without(BY_HAND, "RANK")
    assert isinstance(torchrun.resolve(exported, NONE), NotThisLauncher)
    assert isinstance(torchrun.resolve({**envs.srun(0), **exported}, NONE), NotThisLauncher)


@pytest.mark.parametrize("port", ["0", "65536", "auto"])
def test_a_port_that_is_none_is_refused(port: str) -> None:
    with pytest.raises(UsageError, match="MASTER_PORT must"):
        torchrun.resolve({**envs.torchrun(0), "MASTER_PORT": port}, NONE)
