"""The GPUs of this node that the job may use, and those that belong to this process. Pure, except functions that say Local."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from unisono.cluster.topology import Overrides
from unisono.errors import UsageError

NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"
DRIVER = "/dev/nvidia-uvm"
"""The device file that CUDA has open once it is in use; counting GPUs does not open it."""


def available_gpus(env: Mapping[str, str]) -> tuple[str, ...]:
    """Local: returns the GPUs of this node that a process with this environment may use."""
    return visible_gpus(env, num_found())


def num_found(devices: Path = Path("/dev"), driver: Path = Path("/proc/driver/nvidia/gpus")) -> int:
    """Local: counts the NVIDIA GPUs of this node by the driver's files, without loading any library.

    Device files first: a container sees only its own, while the driver lists all of the machine.
    """
    files = sum(1 for file in devices.glob("nvidia*") if re.fullmatch(r"nvidia[0-9]+", file.name))
    if files or not driver.is_dir():
        return files
    return sum(1 for _ in driver.iterdir())


def driver_in_use(descriptors: Path = Path("/proc/self/fd")) -> bool:
    """Local: whether this process has begun to use CUDA, through whatever library; processes forked from it then cannot use it."""
    try:
        files = list(descriptors.iterdir())
    except OSError:
        return False
    return any(file.is_symlink() and str(file.readlink()) == DRIVER for file in files)


def environment_of_worker(env: Mapping[str, str], own_gpus: Sequence[str] = ()) -> dict[str, str]:
    """Returns `env` for a process that workers are forked from, or for a worker that must see no GPUs but its own.

    Tasks often ask whether PyTorch sees a GPU. PyTorch then starts CUDA, after which a forked process finds none; with this
    variable it only counts them.
    """
    found = {**env, NVML_CHECK: "1"}
    if own_gpus:
        found["CUDA_VISIBLE_DEVICES"] = ",".join(own_gpus)
    return found


def assign_gpus(
    env: Mapping[str, str], local_rank: int, local_size: int, found: int, overrides: Overrides
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the GPUs that this process sees, and those of them that belong to it, as CUDA_VISIBLE_DEVICES names them.

    GPUs that the scheduler bound to this process all belong to it. Otherwise all processes of the node see the same GPUs, and each
    takes its own by local rank: one, or `gpus_per_task`. More processes than GPUs share them in turn.
    """
    visible = visible_gpus(env, found)
    if _is_bound_by_slurm(env, visible, local_size):
        return visible, _first_gpus(visible, overrides.gpus_per_task, "gpus_per_task")
    node = _first_gpus(visible, overrides.gpus_per_node, "gpus_per_node")
    if overrides.gpus_per_task is not None:
        return node, _share_of_process(node, local_rank, local_size, overrides.gpus_per_task)
    each = _slurm_count(env, "SLURM_GPUS_PER_TASK")
    if each is not None and each * local_size <= len(node):
        return node, node[local_rank * each : (local_rank + 1) * each]
    return node, (node[local_rank % len(node)],) if node else ()


def visible_gpus(env: Mapping[str, str], found: int) -> tuple[str, ...]:
    """Returns the GPUs that CUDA would show: numbers, or names of whole or partitioned GPUs (GPU-..., MIG-...)."""
    if not found:
        return ()
    listed = env.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        listed = env.get("SLURM_STEP_GPUS") or ",".join(map(str, range(found)))
    names: list[str] = []
    for name in (part.strip() for part in listed.split(",")):
        # CUDA stops at the first entry that names nothing; -1 and NoDevFiles are the usual ways to hide all.
        if not re.fullmatch(r"[0-9]+|(GPU|MIG)-.+", name):
            break
        names.append(name)
    return tuple(names)


def _is_bound_by_slurm(env: Mapping[str, str], visible: tuple[str, ...], local_size: int) -> bool:
    """Whether the visible GPUs belong to this process alone."""
    if local_size == 1 or len(visible) == 1:
        return True
    binding = env.get("SLURMD_TRES_BIND", "")
    if "CUDA_VISIBLE_DEVICES" not in env or not env.get("SLURM_STEP_ID"):
        return False
    on_node = _slurm_count(env, "SLURM_GPUS_ON_NODE")
    return ("gpu:" in binding and "gpu:none" not in binding) or (on_node is not None and len(visible) < on_node)


def _slurm_count(env: Mapping[str, str], name: str) -> int | None:
    """Returns the number in a variable that SLURM writes as 4, a100:4 or gpu:a100:4; None where there is no number."""
    number = env.get(name, "").rpartition(":")[2]
    return int(number) if re.fullmatch(r"[0-9]{1,9}", number) else None


def _first_gpus(names: tuple[str, ...], wanted: int | None, option: str) -> tuple[str, ...]:
    """Returns the first `wanted` of the visible GPUs, or all of them for None; raises `UsageError` where there are fewer."""
    if wanted is not None and wanted > len(names):
        raise UsageError(
            f"{option} is {wanted} but this process sees {len(names)} GPUs ({', '.join(names) or 'none'}); "
            f"ask the scheduler for more or give {option} {len(names)}"
        )
    return names[:wanted]


def _share_of_process(names: tuple[str, ...], local_rank: int, local_size: int, each: int) -> tuple[str, ...]:
    """Returns the `each` GPUs of this process by its local rank; raises `UsageError` where the node has too few for all."""
    if each * local_size > len(names):
        raise UsageError(
            f"gpus_per_task {each} for {local_size} processes needs {each * local_size} GPUs but this node shows "
            f"{len(names)} ({', '.join(names) or 'none'}); start fewer processes or ask for more GPUs"
        )
    return names[local_rank * each : (local_rank + 1) * each]
