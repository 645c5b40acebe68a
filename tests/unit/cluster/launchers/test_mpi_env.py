"""Open MPI, MPICH and Intel MPI: place, meeting point, and what names the job."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.cluster import environments as envs
from unisono.cluster.launchers.mpi_env import needs_name, resolve_open_mpi, resolve_pmi
from unisono.cluster.topology import NotThisLauncher, Overrides, Resolver, Topology
from unisono.errors import UsageError

NONE = Overrides()


def topology(resolve: Resolver, env: envs.Env, overrides: Overrides = NONE) -> Topology:
    answer = resolve(env, overrides)
    assert isinstance(answer, Topology), answer
    return answer


def without(env: envs.Env, *names: str) -> envs.Env:
    return {name: value for name, value in env.items() if name not in names}


def with_name(rank: int) -> envs.Env:
    return {**envs.mpich(rank), "UNISONO_LAUNCH": "mine"}


@pytest.mark.parametrize(
    ("resolve", "env", "launcher"),
    [(resolve_open_mpi, envs.open_mpi, "openmpi"), (resolve_pmi, envs.intel_mpi, "pmi"), (resolve_pmi, with_name, "pmi")],
)
def test_on_one_machine_everything_is_known(resolve: Resolver, env: Callable[[int], envs.Env], launcher: str) -> None:
    found = [topology(resolve, env(rank)) for rank in range(2)]
    assert [(t.global_rank, t.local_rank) for t in found] == [(0, 0), (1, 1)]
    assert {(t.launcher, t.world_size, t.local_size, t.node_rank, t.num_nodes, t.address) for t in found} == {
        (launcher, 2, 2, 0, 1, "127.0.0.1")
    }
    assert len({(t.port, t.token) for t in found}) == 1
    assert found[0].token


@pytest.mark.parametrize(
    ("resolve", "env"),
    [
        (resolve_open_mpi, envs.open_mpi_in_sbatch),
        (resolve_pmi, envs.mpich_in_sbatch),
        (resolve_pmi, envs.intel_mpi_in_sbatch),
    ],
)
def test_across_nodes_of_a_slurm_job_rank_0_is_on_the_first_host(resolve: Resolver, env: Callable[[int], envs.Env]) -> None:
    found = [topology(resolve, env(rank)) for rank in range(3)]
    assert [(t.global_rank, t.local_rank, t.local_size) for t in found] == [(0, 0, 2), (1, 1, 2), (2, 0, 1)]
    assert {(t.world_size, t.node_rank, t.num_nodes, t.address) for t in found} == {(3, None, None, "n1")}
    assert len({(t.port, t.token) for t in found}) == 1
    assert found[0].token


def test_open_mpi_ranks_beside_mpirun_have_no_step_and_still_agree() -> None:
    """mpirun starts the ranks of its own node itself; only its other nodes' daemons are tasks of a step."""
    beside = without(envs.open_mpi_in_sbatch(0), *(name for name in envs.open_mpi_in_sbatch(0) if name.startswith("SLURM_STEP_")))
    away = {**envs.open_mpi_in_sbatch(2), "SLURM_STEP_NODELIST": "n2", "SLURM_NODEID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    one, two = topology(resolve_open_mpi, beside), topology(resolve_open_mpi, away)
    assert (one.address, one.port, one.token) == (two.address, two.port, two.token) == ("n1", one.port, one.token)


@pytest.mark.parametrize(
    ("resolve", "env", "name"),
    [
        (resolve_open_mpi, envs.open_mpi_in_sbatch(0), "PMIX_HOSTNAME"),
        (resolve_pmi, envs.mpich_in_sbatch(0), "PMI_HOSTNAME"),
        (resolve_pmi, envs.intel_mpi_in_sbatch(0), "HYDRA_BSTRAP_LOCALHOST"),
    ],
)
def test_rank_0_on_another_host_objects(resolve: Resolver, env: envs.Env, name: str) -> None:
    with pytest.raises(UsageError, match=rf"rank 0 runs on n2 \({name}\).*n1.*UNISONO_RENDEZVOUS=n2:PORT"):
        resolve({**env, name: "n2.site.edu"}, NONE)
    # a name that SLURM does not know says nothing
    assert topology(resolve, {**env, name: "some-alias"}).address == "n1"
    assert topology(resolve, {**env, name: "n2", "UNISONO_RENDEZVOUS": "n2:4000"}).address is None


def test_across_nodes_without_slurm_mpi_must_be_asked() -> None:
    env = {**envs.open_mpi(1), "OMPI_COMM_WORLD_SIZE": "4"}
    found = topology(resolve_open_mpi, env)
    assert (found.node_rank, found.num_nodes, found.address) == (None, None, None)
    assert found.token
    found = topology(resolve_pmi, {**envs.mpich(1), "PMI_SIZE": "4"})
    assert (found.address, found.token) == (None, "")
    # over ssh MPICH hands the script's variables to all nodes, so no step tells two calls of mpirun apart
    found = topology(resolve_pmi, {**envs.SBATCH_SHELL, **envs.mpich(1), "PMI_SIZE": "4"})
    assert (found.address, found.token) == (None, "")


@pytest.mark.parametrize(
    ("resolve", "env", "name", "other"),
    [
        (resolve_open_mpi, envs.open_mpi(0), "PMIX_NAMESPACE", "prterun-laptop-6521@1"),
        (resolve_pmi, envs.intel_mpi(0), "I_MPI_HYDRA_UUID", "151d0000-c8eb-e01a-4760-060011d4f23d"),
        (resolve_pmi, envs.mpich_in_sbatch(0), "SLURM_STEP_ID", "2"),
        (resolve_pmi, with_name(0), "UNISONO_LAUNCH", "yours"),
    ],
)
def test_two_calls_of_mpirun_have_two_tokens(resolve: Resolver, env: envs.Env, name: str, other: str) -> None:
    assert topology(resolve, env).token != topology(resolve, {**env, name: other}).token


def test_mpich_on_one_machine_does_not_name_its_job() -> None:
    assert needs_name(envs.mpich(0))
    assert needs_name({**envs.srun(0), **envs.mpich(0)})  # several calls of mpirun in one step are several jobs
    with pytest.raises(UsageError, match=r"gives its job no name.*export UNISONO_TOKEN="):
        resolve_pmi(envs.mpich(0), NONE)
    with pytest.raises(UsageError, match=r"export UNISONO_TOKEN="):
        resolve_open_mpi(without(envs.open_mpi(0), "PMIX_NAMESPACE"), NONE)
    alone = {**envs.mpich(0), "PMI_SIZE": "1", "MPI_LOCALNRANKS": "1"}
    assert topology(resolve_pmi, alone).world_size == 1


@pytest.mark.parametrize(
    "env",
    [
        {},
        with_name(0),
        envs.intel_mpi(0),
        envs.mpich_in_sbatch(0),
        envs.srun_pmi2(0),
        envs.open_mpi(0),
        envs.MPICH_PMI_PORT,
        {**envs.mpich(0), "PMI_SIZE": "4"},
    ],
)
def test_all_others_need_no_token(env: envs.Env) -> None:
    assert not needs_name(env)


def test_pmi_variables_of_srun_are_left_to_slurm() -> None:
    answer = resolve_pmi(envs.srun_pmi2(1), NONE)
    assert isinstance(answer, NotThisLauncher)
    assert "srun" in answer.reason
    with pytest.raises(UsageError, match="variables of PMI are incomplete"):
        resolve_pmi({**envs.SBATCH_SHELL, "PMI_RANK": "0", "PMI_SIZE": "3"}, NONE)


def test_cray_names_of_the_place_on_the_node() -> None:
    names = {"PMI_RANK": "5", "PMI_SIZE": "8", "PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "4", "PALS_APID": "f00"}
    found = topology(resolve_pmi, names)
    assert (found.global_rank, found.world_size, found.local_rank, found.local_size) == (5, 8, 1, 4)
    assert (found.address, bool(found.token)) == (None, True)


@pytest.mark.parametrize(
    ("resolve", "env", "missing"),
    [
        (resolve_open_mpi, without(envs.open_mpi(0), "OMPI_COMM_WORLD_SIZE"), "OMPI_COMM_WORLD_SIZE"),
        (resolve_open_mpi, without(envs.open_mpi(0), "OMPI_COMM_WORLD_RANK"), "OMPI_COMM_WORLD_RANK"),
        (resolve_open_mpi, without(envs.open_mpi(0), "OMPI_COMM_WORLD_LOCAL_SIZE"), "OMPI_COMM_WORLD_LOCAL_SIZE"),
        (resolve_pmi, without(envs.mpich(0), "PMI_SIZE"), "PMI_SIZE"),
        (resolve_pmi, without(envs.mpich(0), "MPI_LOCALRANKID"), "MPI_LOCALRANKID or PMI_LOCAL_RANK"),
        (resolve_pmi, envs.MPICH_PMI_PORT, "PMI_RANK, PMI_SIZE"),
    ],
)
def test_half_set_variables_are_refused(resolve: Resolver, env: envs.Env, missing: str) -> None:
    with pytest.raises(UsageError, match=f"incomplete: .* {missing} (is|are) missing .* start with mpirun"):
        resolve(env, NONE)


@pytest.mark.parametrize("resolve", [resolve_open_mpi, resolve_pmi])
def test_nothing_set_is_no_mpi(resolve: Resolver) -> None:
    assert isinstance(resolve({}, NONE), NotThisLauncher)


def test_a_number_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match=r"OMPI_COMM_WORLD_SIZE must be a whole number; received '2\.0'"):
        resolve_open_mpi({**envs.open_mpi(0), "OMPI_COMM_WORLD_SIZE": "2.0"}, NONE)


def test_the_port_can_be_given() -> None:
    assert topology(resolve_open_mpi, envs.open_mpi(0), Overrides(port=5000)).port == 5000
