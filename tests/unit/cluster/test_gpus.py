"""Which GPUs are ours: bound by the scheduler, or ours by local rank. SLURM's values were seen under SLURM 22.05."""

from __future__ import annotations

from pathlib import Path

import pytest

from unisono.cluster import gpus
from unisono.cluster.machine import affinity
from unisono.cluster.topology import Overrides
from unisono.errors import UsageError
from unisono.launch.launch import LaunchConfig, launch

NONE = Overrides()
STEP = {"SLURM_STEP_ID": "0", "SLURM_GPUS_ON_NODE": "2"}


def ours(
    env: dict[str, str], local_rank: int, local_size: int, found: int = 8, overrides: Overrides = NONE
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return gpus.assign_gpus(env, local_rank, local_size, found, overrides)


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        (None, ("0", "1", "2")),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("2", ("2",)),
        ("2, 0", ("2", "0")),
        ("0,-1,1", ("0",)),
        ("GPU-8f3c,GPU-77aa", ("GPU-8f3c", "GPU-77aa")),
        ("MIG-1f,1", ("MIG-1f", "1")),
    ],
)
def test_what_cuda_would_show(listed: str | None, expected: tuple[str, ...]) -> None:
    env = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    assert gpus.visible_gpus(env, 3) == expected
    assert gpus.visible_gpus(env, 0) == ()
    assert gpus.available_gpus(env) == gpus.visible_gpus(env, gpus.num_found())


def test_all_see_all_so_each_takes_its_own() -> None:
    for rank in range(3):
        assert ours({}, rank, 3, 4) == (("0", "1", "2", "3"), (str(rank),))
    names = {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}
    assert ours(names, 1, 2) == (("GPU-a", "GPU-b"), ("GPU-b",))
    # srun -N2 -n4 --gres=gpu:2
    assert ours({**STEP, "CUDA_VISIBLE_DEVICES": "0,1", "SLURM_STEP_GPUS": "0,1"}, 1, 2) == (("0", "1"), ("1",))


def test_more_processes_than_gpus_share_in_turn() -> None:
    assert [ours({}, rank, 4, 2)[1] for rank in range(4)] == [("0",), ("1",), ("0",), ("1",)]


def test_no_gpus() -> None:
    assert ours({}, 1, 2, 0) == ((), ())
    assert ours({"CUDA_VISIBLE_DEVICES": ""}, 1, 2) == ((), ())
    assert ours({"CUDA_VISIBLE_DEVICES": "0,1"}, 1, 2, 0) == ((), ())


def test_what_the_scheduler_bound_is_ours_whole() -> None:
    # srun -N1 -n2 --gpus-per-task=1
    bound = {**STEP, "CUDA_VISIBLE_DEVICES": "1", "SLURM_STEP_GPUS": "1", "SLURMD_TRES_BIND": "gpu:per_task:1"}
    assert ours(bound, 1, 2) == (("1",), ("1",))
    # two for each of two processes, with and without SLURM saying that it bound them
    pair = {**STEP, "SLURM_GPUS_ON_NODE": "4", "CUDA_VISIBLE_DEVICES": "2,3"}
    assert ours(pair, 1, 2) == (("2", "3"), ("2", "3"))
    said = {**STEP, "CUDA_VISIBLE_DEVICES": "0,1", "SLURMD_TRES_BIND": "gpu:map_gpu:1,0"}
    assert ours(said, 1, 2) == (("0", "1"), ("0", "1"))
    # srun --gpu-bind=none: nothing is bound, and nothing is set
    assert ours({**STEP, "SLURMD_TRES_BIND": "gpu:none"}, 1, 2, 2) == (("0", "1"), ("1",))


def test_a_single_process_of_a_node_has_all() -> None:
    assert ours({}, 0, 1, 4) == (("0", "1", "2", "3"), ("0", "1", "2", "3"))


def test_a_batch_scripts_variables_bind_nothing() -> None:
    """mpirun inside sbatch: all ranks inherit the script's list, which is that of the whole job on this node."""
    env = {"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_GPUS_ON_NODE": "4", "SLURM_JOB_GPUS": "0,1"}
    assert ours(env, 1, 2) == (("0", "1"), ("1",))


def test_the_slurm_step_counts_where_cuda_visible_devices_is_unset() -> None:
    assert ours({**STEP, "SLURM_STEP_GPUS": "4,5"}, 1, 2) == (("4", "5"), ("5",))


def test_gpus_for_each_task() -> None:
    env = {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    assert ours({**env, "SLURM_GPUS_PER_TASK": "a100:2"}, 1, 2)[1] == ("2", "3")
    assert ours({**env, "SLURM_GPUS_PER_TASK": "2"}, 1, 3)[1] == ("1",)  # more ranks than SLURM counted on
    assert ours(env, 1, 2, 8, Overrides(gpus_per_task=2))[1] == ("2", "3")
    assert ours(env, 1, 2, 8, Overrides(gpus_per_task=0))[1] == ()
    assert ours(env, 0, 1, 8, Overrides(gpus_per_task=1))[1] == ("0",)
    assert ours(env, 1, 2, 8, Overrides(gpus_per_node=2)) == (("0", "1"), ("1",))
    assert ours(env, 1, 2, 8, Overrides(gpus_per_node=0)) == ((), ())


@pytest.mark.parametrize(
    ("overrides", "local_size", "fact"),
    [
        (Overrides(gpus_per_task=3), 2, r"gpus_per_task 3 for 2 processes needs 6 GPUs but this node shows 4 \(0, 1, 2, 3\)"),
        (Overrides(gpus_per_task=5), 1, "gpus_per_task is 5 but this process sees 4 GPUs"),
        (Overrides(gpus_per_node=8), 2, "gpus_per_node is 8 but this process sees 4 GPUs"),
    ],
)
def test_more_than_there_are_is_refused(overrides: Overrides, local_size: int, fact: str) -> None:
    with pytest.raises(UsageError, match=fact):
        ours({}, 0, local_size, 4, overrides)


def test_gpus_are_counted_without_any_library(tmp_path: Path) -> None:
    devices, driver = tmp_path / "dev", tmp_path / "gpus"
    devices.mkdir()
    assert gpus.num_found(devices, driver) == 0
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-caps", "nvme0"):
        (devices / name).touch()
    assert gpus.num_found(devices, driver) == 0
    for name in ("0000:07:00.0", "0000:0a:00.0", "0000:47:00.0"):
        (driver / name).mkdir(parents=True)
    assert gpus.num_found(devices, driver) == 3
    for name in ("nvidia0", "nvidia11"):
        (devices / name).touch()
    assert gpus.num_found(devices, driver) == 2


def test_threads_for_each_worker() -> None:
    assert [affinity.threads_per_worker(size, range(8)) for size in (1, 2, 3, 8, 100)] == [8, 4, 2, 1, 1]
    assert affinity.threads_per_worker(1) == len(affinity.available_cpus()) >= 1


def test_shares_of_the_cpus_are_disjoint_and_equal() -> None:
    mask = (1, 3, 4, 8, 9)
    assert [affinity.cpu_share(r, 2, mask) for r in range(2)] == [frozenset({1, 3}), frozenset({4, 8})]
    assert [affinity.cpu_share(r, 5, mask) for r in range(5)] == [frozenset({cpu}) for cpu in mask]
    assert affinity.cpu_share(0, 6, mask) is None


def test_a_driver_in_use_is_seen_by_what_the_process_has_open(tmp_path: Path) -> None:
    """Who only counts GPUs has other files open."""
    for number, target in enumerate(("/dev/null", "/dev/nvidiactl", "/dev/nvidia0", "socket:[17]")):
        (tmp_path / str(number)).symlink_to(target)
    assert not gpus.driver_in_use(tmp_path)
    (tmp_path / "9").symlink_to("/dev/nvidia-uvm")
    assert gpus.driver_in_use(tmp_path)
    assert not gpus.driver_in_use(tmp_path / "missing")


def test_a_worker_counts_gpus_without_using_them_and_sees_its_own() -> None:
    env = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0,1", "PYTORCH_NVML_BASED_CUDA_CHECK": "0"}
    shared = {**env, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    assert gpus.environment_of_worker(env) == shared
    assert gpus.environment_of_worker(env, ("1",)) == {**shared, "CUDA_VISIBLE_DEVICES": "1"}
    assert gpus.environment_of_worker(env, ("GPU-a", "GPU-b")) == {**shared, "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}


@pytest.mark.parametrize(("policy", "code"), [("one", 1), ("all", 0)])
def test_ranks_that_choose_their_gpu_themselves_see_all_of_them(policy: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "num_found", lambda: 4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    asks = 'test "$CUDA_VISIBLE_DEVICES" = 2,3'
    assert launch(LaunchConfig(("sh", "-c", asks), num_local=1, gpus=policy)) == code


def test_a_policy_for_gpus_that_is_not_known_is_refused() -> None:
    with pytest.raises(UsageError, match=r"gpus must be one of one, all; received 'some'"):
        LaunchConfig(("train.py",), 1, gpus="some")
