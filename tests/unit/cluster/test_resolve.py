"""The order of asking, what users may say instead, and what any launcher may carry."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.unit.cluster import environments as envs
from unisono.cluster import gpus
from unisono.cluster.resolve import RESOLVERS, current_topology, resolve, verdicts
from unisono.cluster.topology import NotThisLauncher, Overrides, Topology
from unisono.errors import UsageError

TF_CONFIG = {"TF_CONFIG": json.dumps({"cluster": {"worker": ["n1:1", "n2:2"]}, "task": {"type": "worker", "index": 1}})}


def test_the_order_is_innermost_first() -> None:
    assert [name for name, _ in RESOLVERS] == ["unisono", "torchrun", "openmpi", "pmi", "slurm", "tf_config", "local"]


@pytest.mark.parametrize(
    ("env", "launcher", "rank", "world_size"),
    [
        ({}, "local", 0, 1),
        (envs.SBATCH_SHELL, "local", 0, 1),
        (envs.SALLOC_SHELL, "local", 0, 1),
        (envs.SALLOC_INTERACTIVE_STEP, "local", 0, 1),
        (envs.srun(2), "slurm", 2, 3),
        (envs.srun_pmi2(2), "slurm", 2, 3),
        (envs.open_mpi(1), "openmpi", 1, 2),
        (envs.open_mpi_in_sbatch(2), "openmpi", 2, 3),
        (envs.mpich_in_sbatch(2), "pmi", 2, 3),
        (envs.intel_mpi(1), "pmi", 1, 2),
        (envs.intel_mpi_in_sbatch(2), "pmi", 2, 3),
        (envs.torchrun(1), "torchrun", 1, 2),
        (envs.torchrun_in_srun(3), "torchrun", 3, 4),
        (TF_CONFIG, "tf_config", 1, 2),
        ({**envs.SBATCH_SHELL, **TF_CONFIG}, "tf_config", 1, 2),
        ({**envs.srun(2), **TF_CONFIG}, "slurm", 2, 3),
        (envs.own(1), "unisono", 1, 2),
        ({**envs.torchrun_in_srun(3), **envs.open_mpi(1), **envs.own(1)}, "unisono", 1, 2),
    ],
)
def test_the_launcher_is_recognised(env: envs.Env, launcher: str, rank: int, world_size: int) -> None:
    found = resolve(env)
    assert (found.launcher, found.global_rank, found.world_size) == (launcher, rank, world_size)


def test_half_set_variables_of_an_inner_launcher_are_not_passed_over() -> None:
    with pytest.raises(UsageError, match="variables of torchrun are incomplete"):
        resolve({**envs.srun(0), "RANK": "0"})


def test_unisono_run_says_everything() -> None:
    found = resolve(envs.own(1))
    assert found == Topology(
        launcher="unisono",
        global_rank=1,
        world_size=2,
        local_rank=1,
        local_size=2,
        node_rank=0,
        num_nodes=1,
        address="127.0.0.1",
        port=20007,
        token="0123456789abcdef",
        job="hello.py",
    )
    assert resolve(envs.own(1), Overrides(port=5)).port == 5


@pytest.mark.parametrize("name", [name for name in envs.own(0) if name not in ("UNISONO_JOB", "UNISONO_TOKEN")])
def test_half_set_variables_of_unisono_run_are_refused(name: str) -> None:
    env = {key: value for key, value in envs.own(0).items() if key != name}
    with pytest.raises(UsageError, match=f"variables of unisono run are incomplete: .* {name} is missing"):
        resolve(env)


def test_an_allocation_with_several_tasks_is_pointed_out_to_a_single_process() -> None:
    assert "batch script of SLURM job 2" in resolve(envs.SBATCH_SHELL).note
    assert "3 tasks" in resolve(envs.SBATCH_SHELL).note
    assert "start ranks with srun" in resolve(envs.SALLOC_SHELL).note
    assert "interactive" in resolve(envs.SALLOC_INTERACTIVE_STEP).note
    assert resolve({**envs.SBATCH_SHELL, "SLURM_NTASKS": "1"}).note == ""
    assert resolve({}).note == ""


@pytest.mark.parametrize(
    ("env", "facts"),
    [
        (envs.srun(0), ("4 processes were requested but slurm started 3", "ask for 3 or start 4")),
        (envs.own(0), ("4 processes were requested but unisono started 2", "ask for 2 or start 4")),
        ({}, ("4 processes were requested but this process was started alone", "unisono run -n 4")),
        (envs.SBATCH_SHELL, ("but this process was started alone", "this is the batch script of SLURM job 2")),
    ],
)
def test_another_number_than_asked_for_is_refused(env: envs.Env, facts: tuple[str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(env, Overrides(world_size=4))
    for fact in facts:
        assert fact in str(caught.value)


def test_the_number_asked_for_is_accepted() -> None:
    assert resolve(envs.srun(0), Overrides(world_size=3)).world_size == 3


def test_jobs_name_the_processes_in_the_order_of_ranks() -> None:
    overrides = Overrides(jobs={"worker": 2, "spare": 0, "ps": 1})
    found = [resolve(envs.srun(rank), overrides) for rank in range(3)]
    assert [(t.task_type, t.task_index) for t in found] == [("worker", 0), ("worker", 1), ("ps", 0)]
    assert resolve(envs.srun(0)).task_type is None
    with pytest.raises(UsageError, match=r"jobs \(worker: 3, ps: 1\) name 4 processes but slurm started 3"):
        resolve(envs.srun(0), Overrides(jobs={"worker": 3, "ps": 1}))


def test_an_unknown_override_is_refused() -> None:
    with pytest.raises(UsageError, match="tasks_per_node has an effect under SLURM only, but torchrun"):
        resolve(envs.torchrun(0), Overrides(tasks_per_node=2))


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        ({"world_size": 0}, "world_size must be at least 1; received 0"),
        ({"port": 0}, "port must be at least 1"),
        ({"port": 65536}, "port must lie in 1..65535"),
        ({"tasks_per_node": (2, 0)}, "tasks_per_node must be at least 1"),
        ({"tasks_per_node": -1}, "tasks_per_node must be at least 1"),
        ({"gpus_per_node": -1}, "gpus_per_node must be at least 0"),
        ({"gpus_per_task": -1}, "gpus_per_task must be at least 0"),
        ({"jobs": {"worker": -1}}, r"jobs\['worker'\] must be at least 0"),
    ],
)
def test_overrides_check_themselves(arguments: dict[str, object], fact: str) -> None:
    with pytest.raises(UsageError, match=fact):
        Overrides(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("env", [{}, envs.srun(0), envs.torchrun(0), envs.open_mpi(0), envs.own(0), TF_CONFIG])
def test_options_pass_through_any_launcher(env: envs.Env) -> None:
    plain = resolve(env)
    assert (plain.engine, plain.allreduce, plain.time_limit_s) == ("auto", "auto", 600.0)
    wishes = {
        "UNISONO_ENGINE": "gloo",
        "UNISONO_ALLREDUCE": "ring",
        "UNISONO_TIME_LIMIT_S": "2.5",
        "UNISONO_JOB": "night",
        "UNISONO_TOKEN": "secret",
        "UNISONO_RENDEZVOUS": "[fe80::1]:4000",
    }
    expected = replace(
        plain,
        engine="gloo",
        allreduce="ring",
        time_limit_s=2.5,
        job="night",
        address="fe80::1",
        port=4000,
    )
    assert resolve({**env, **wishes}) == expected
    assert resolve({**env, **wishes}, Overrides(port=4444)).port == 4444


@pytest.mark.parametrize("value", ["soon", "0", "-3", "nan", "inf"])
def test_a_time_limit_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match=f"UNISONO_TIME_LIMIT_S must be a number of seconds above 0; received '{value}'"):
        resolve({"UNISONO_TIME_LIMIT_S": value})


@pytest.mark.parametrize("name", ["UNISONO_ENGINE", "UNISONO_ALLREDUCE"])
def test_an_unknown_option_is_refused_by_the_name_of_its_variable(name: str) -> None:
    with pytest.raises(UsageError, match=rf"{name} must be one of auto, .*; received 'magic' \(environment\); correct or unset it"):
        resolve({name: "magic"})
    assert resolve({name: ""}).engine == "auto"


def test_a_rendezvous_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="UNISONO_RENDEZVOUS must be host:port"):
        resolve({**envs.srun(0), "UNISONO_RENDEZVOUS": "n1"})


def test_verdicts_give_the_reason_of_each() -> None:
    found = dict(verdicts(envs.torchrun_in_srun(3)))
    assert list(found) == [name for name, _ in RESOLVERS]
    assert isinstance(found["unisono"], NotThisLauncher)
    assert isinstance(found["torchrun"], Topology)
    slurm = found["slurm"]
    assert isinstance(slurm, Topology)
    assert slurm.world_size == 2
    found = dict(verdicts({**envs.srun(0), "RANK": "0"}))
    assert isinstance(found["torchrun"], UsageError)
    assert isinstance(found["slurm"], Topology)


def test_places_must_fit() -> None:
    with pytest.raises(UsageError, match="node_rank 1 does not fit num_nodes 1"):
        resolve({**envs.own(0), "UNISONO_NODE_RANK": "1"})
    with pytest.raises(UsageError, match="local_size 3 exceeds world_size 2"):
        resolve({**envs.own(0), "UNISONO_LOCAL_SIZE": "3"})


def test_here_reads_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("SLURM", "OMPI", "PMI", "UNISONO", "CUDA")) or name in ("RANK", "TF_CONFIG", "TORCHELASTIC_RUN_ID"):
            monkeypatch.delenv(name)
    assert current_topology().launcher == "local"
    for name, value in {**envs.srun(1), "CUDA_VISIBLE_DEVICES": "4,5"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(gpus, "num_found", lambda: 8)
    found = current_topology()
    assert (found.global_rank, found.gpus, found.own_gpus) == (1, ("4", "5"), ("5",))


def test_ranks_of_mpich_find_a_common_token_through_scripts() -> None:
    """Two ranks as MPICH's proxy starts them, one directly and one inside a shell script, and a rank of another call."""
    shown = "import unisono.cluster.resolve as r; t = r.current_topology(); print(t.launcher, t.global_rank, t.token, t.port)"
    start = [sys.executable, "-c", shown]
    inside = ["/bin/sh", "-c", f"{sys.executable} -c '{shown}'; exit $?"]
    base = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "OMPI", "PMI", "UNISONO_", "I_MPI"))}
    first, second, third = (
        subprocess.run(command, env={**base, **envs.mpich(rank)}, capture_output=True, text=True, timeout=60, check=True)
        for command, rank in ((start, 0), (inside, 1), (["/bin/sh", "-c", _another_proxy(start)], 1))
    )
    one, two, three = first.stdout.split(), second.stdout.split(), third.stdout.split()
    assert one[:2] == ["pmi", "0"]
    assert two[:2] == ["pmi", "1"]
    assert one[2:] == two[2:]
    assert three[2] != one[2]


def _another_proxy(start: list[str]) -> str:
    """A shell that, like a proxy, has no rank itself and gives one to what it starts."""
    program = " ".join(f"'{part}'" if " " in part else part for part in start)
    return f'exec env -u PMI_RANK /bin/sh -c "PMI_RANK=1 {program}; exit $?"'
