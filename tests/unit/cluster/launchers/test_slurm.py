"""SLURM: only a task of a step is a rank; what is half set or contradicts itself is refused."""

from __future__ import annotations

import pytest

from tests.unit.cluster import environments as envs
from unisono.cluster.launchers import slurm
from unisono.cluster.topology import NotThisLauncher, Overrides, Topology
from unisono.errors import UsageError

NONE = Overrides()


def topology(env: envs.Env, overrides: Overrides = NONE) -> Topology:
    answer = slurm.resolve(env, overrides)
    assert isinstance(answer, Topology), answer
    return answer


def test_tasks_of_a_step_know_their_place() -> None:
    found = [topology(envs.srun(rank)) for rank in range(3)]
    assert [(t.global_rank, t.local_rank, t.local_size, t.node_rank) for t in found] == [
        (0, 0, 2, 0),
        (1, 1, 2, 0),
        (2, 0, 1, 1),
    ]
    assert {(t.launcher, t.world_size, t.num_nodes, t.address) for t in found} == {("slurm", 3, 2, "n1")}
    assert len({(t.port, t.token) for t in found}) == 1
    assert found[0].job == "SLURM step 2.0"
    assert found[0].note == ""


def test_the_step_counts_rather_than_the_job() -> None:
    found = topology(envs.SRUN_ON_PART_OF_THE_JOB)
    assert (found.world_size, found.num_nodes, found.address) == (1, 1, "n2")


def test_uneven_tasks_on_many_nodes() -> None:
    env = {
        **envs.srun(0),
        "SLURM_STEP_NODELIST": "nid0[1111-1113,2222],gpu[01-02]",
        "SLURM_STEP_TASKS_PER_NODE": "2(x3),1,4(x2)",
        "SLURM_STEP_NUM_TASKS": "15",
        "SLURM_PROCID": "9",
        "SLURM_NODEID": "4",
        "SLURM_LOCALID": "2",
    }
    found = topology(env)
    assert (found.global_rank, found.world_size, found.local_rank, found.local_size) == (9, 15, 2, 4)
    assert (found.node_rank, found.num_nodes, found.address) == (4, 6, "nid01111")


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ({"SLURM_JOB_ID": "3"}, False),
        ({"SLURM_STEP_ID": "1"}, False),
        ({"SLURM_JOB_UID": "1001"}, False),
        ({"SLURM_RESTART_COUNT": "1"}, False),
        ({"SLURM_STEP_LAUNCHER_PORT": "1"}, True),
    ],
)
def test_the_token_is_of_the_step(other: dict[str, str], same: bool) -> None:
    one, two = topology(envs.srun(0)), topology({**envs.srun(0), **other})
    assert (one.token == two.token) is same
    assert (one.port == two.port) is same


@pytest.mark.parametrize(
    ("env", "what"),
    [
        (envs.SBATCH_SHELL, "the batch script of SLURM job 2"),
        (envs.SALLOC_SHELL, "a shell or program of SLURM job 2"),
        (envs.SALLOC_INTERACTIVE_STEP, "an interactive salloc shell of SLURM job 2"),
        ({**envs.SBATCH_SHELL, "SLURM_STEP_ID": "4294967291"}, "the batch script of SLURM job 2"),
        ({**envs.SBATCH_SHELL, "SLURM_STEP_ID": "4294967292"}, "an external login of SLURM job 2"),
        ({**envs.SBATCH_SHELL, "SLURM_STEP_ID": "4294967288"}, "the special step 4294967288 of SLURM job 2"),
        ({}, "SLURM_STEP_ID is not set"),
    ],
)
def test_what_is_not_a_rank_says_so(env: envs.Env, what: str) -> None:
    answer = slurm.resolve(env, NONE)
    assert isinstance(answer, NotThisLauncher)
    assert what in answer.reason
    assert "srun" in answer.reason


def test_a_shell_under_srun_pty_is_pointed_out() -> None:
    assert "--pty" in topology({**envs.srun(0), "SLURM_PTY_PORT": "43473"}).note
    assert topology({**envs.SRUN_ON_PART_OF_THE_JOB, "SLURM_PTY_PORT": "43473"}).note == ""


@pytest.mark.parametrize("name", ["SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_JOB_ID"])
def test_half_set_variables_are_refused(name: str) -> None:
    env = {key: value for key, value in envs.srun(1).items() if key != name}
    with pytest.raises(UsageError, match="incomplete") as caught:
        slurm.resolve(env, NONE)
    assert f"{name} is missing" in str(caught.value)
    assert "SLURM_STEP_ID" in str(caught.value)
    assert "start with srun" in str(caught.value)


def test_a_rank_without_job_and_step_is_half_set() -> None:
    with pytest.raises(UsageError, match=r"SLURM_PROCID is set, SLURM_JOB_ID, SLURM_STEP_ID are missing"):
        slurm.resolve({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, NONE)


def test_older_names_are_enough_but_none_is_not() -> None:
    step_only = {k: v for k, v in envs.srun(2).items() if not k.startswith("SLURM_STEP_") or k == "SLURM_STEP_ID"}
    assert topology(step_only) == topology(envs.srun(2))
    with pytest.raises(UsageError, match="SLURM_STEP_TASKS_PER_NODE or SLURM_TASKS_PER_NODE is missing"):
        slurm.resolve({k: v for k, v in step_only.items() if k != "SLURM_TASKS_PER_NODE"}, NONE)


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"SLURM_PROCID": "one"}, ("SLURM_PROCID must be a whole number", "'one'")),
        ({"SLURM_PROCID": "-1"}, ("SLURM_PROCID must be a whole number", "'-1'")),
        ({"SLURM_STEP_ID": "batch"}, ("SLURM_STEP_ID must be a whole number", "'batch'")),
        ({"SLURM_PROCID": "3"}, ("global_rank 3 does not fit world_size 3", "slurm")),
        ({"SLURM_LOCALID": "2"}, ("local_rank 2 does not fit local_size 2", "slurm")),
        ({"SLURM_NODEID": "2"}, ("SLURM_NODEID is 2 but the step has 2 nodes", "srun")),
        ({"SLURM_STEP_NODELIST": "n[1-"}, ("SLURM_STEP_NODELIST is not a list of hosts", "'n[1-'")),
        ({"SLURM_STEP_TASKS_PER_NODE": "2x"}, ("SLURM_STEP_TASKS_PER_NODE must look like", "'2x'")),
        ({"SLURM_STEP_NODELIST": "n1"}, ("SLURM_STEP_TASKS_PER_NODE 2,1 is for 2 nodes", "n1 lists 1")),
        ({"SLURM_STEP_NUM_TASKS": "4"}, ("gives 3 tasks on 2 nodes", "SLURM_STEP_NUM_TASKS is 4")),
    ],
)
def test_contradictions_are_refused(change: dict[str, str], facts: tuple[str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        slurm.resolve({**envs.srun(0), **change}, NONE)
    for fact in facts:
        assert fact in str(caught.value)


def test_tasks_per_node_and_port_can_be_given() -> None:
    env = {k: v for k, v in envs.srun(1).items() if "TASKS_PER_NODE" not in k}
    assert topology(env, Overrides(tasks_per_node=(2, 1))) == topology(envs.srun(1))
    even = {**env, "SLURM_STEP_NUM_TASKS": "4"}
    assert topology(even, Overrides(tasks_per_node=2)).local_size == 2
    with pytest.raises(UsageError, match=r"tasks_per_node \(given\) 2 gives 4 tasks on 2 nodes but SLURM_STEP_NUM_TASKS is 3"):
        slurm.resolve(env, Overrides(tasks_per_node=2))
    with pytest.raises(UsageError, match=r"tasks_per_node \(given\) \(1, 1, 1\) is for 3 nodes"):
        slurm.resolve(env, Overrides(tasks_per_node=(1, 1, 1)))
    assert topology(envs.srun(1), Overrides(port=8888)).port == 8888
