"""Gathers the facts that one process can find out by itself: CPUs, memory, GPUs, names, interfaces, packages. Local; imports
torch."""

from __future__ import annotations

import importlib.util
import os
import platform
import resource
import socket
import sys
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path

from unisono.cluster.machine import cgroup
from unisono.cluster.machine.affinity import available_cpus
from unisono.cluster.topology import Topology
from unisono.doctor import installed_mpi, interfaces
from unisono.doctor.facts import Facts, Torch
from unisono.launch.lasting_import import import_to_stay
from unisono.launch.rank_env import THREAD_VARIABLES
from unisono.version import __version__

VARIABLES = (
    *THREAD_VARIABLES,
    "GLOO_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME",
    "NCCL_IB_DISABLE",
    "OMPI_MCA_btl_tcp_if_include",
    "OMPI_MCA_btl_tcp_if_exclude",
    "OMPI_MCA_pml",
    "UCX_NET_DEVICES",
    "FI_PROVIDER",
    "FI_TCP_IFACE",
    "I_MPI_FABRICS",
)
SHARED_MEMORY = Path("/dev/shm")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
RESOLVE_LIMIT_S = 5.0


def gather(at: Topology, env: Mapping[str, str], address: str) -> Facts:
    """Gathers the facts of this rank. Blocking for seconds, as importing torch takes that long. `address` is where other ranks
    reach this one."""
    mask = tuple(sorted(available_cpus()))
    addresses, host_error = resolve_name(socket.gethostname())
    shm_bytes, shm_free_bytes = _shared_memory()
    asked = env.get("SLURM_CPUS_PER_TASK", "")
    return Facts(
        rank=at.global_rank,
        size=at.world_size,
        launcher=at.launcher,
        node=node_name(at),
        host=socket.gethostname(),
        pid=os.getpid(),
        engine=at.engine,
        address=address,
        host_addresses=addresses,
        host_error=host_error,
        cpus=mask,
        parent_cpus=_parent_cpus(mask),
        cpu_quota=cgroup.cpu_quota(),
        cpus_per_task=int(asked) if at.launcher == "slurm" and asked.isdigit() else None,
        variables={name: env[name] for name in VARIABLES if env.get(name)},
        shm_bytes=shm_bytes,
        shm_free_bytes=shm_free_bytes,
        memory_bytes=_memory(),
        gpus=at.gpus,
        our_gpus=at.own_gpus,
        interfaces=interfaces.find_interfaces(),
        open_files=_limit(resource.RLIMIT_NOFILE)[0],
        open_files_hard=_limit(resource.RLIMIT_NOFILE)[1],
        locked_bytes=_limit(resource.RLIMIT_MEMLOCK)[0],
        python=platform.python_version(),
        executable=sys.executable,
        unisono=__version__,
        torch=_torch(),
        mpi=installed_mpi.find_installed(env, at.launcher),
    )


def node_name(at: Topology) -> str:
    """The name by which `connect` tells nodes apart: from the launcher, otherwise one that is unique to each running machine."""
    if at.node_rank is not None:
        return f"node {at.node_rank}"
    return at.node_name or (BOOT_ID.read_text().strip() if BOOT_ID.exists() else socket.gethostname())


def resolve_name(name: str) -> tuple[tuple[str, ...], str]:
    """Resolves a host name: its addresses, or why there are none. Blocking, with a time limit."""
    answers: list[tuple[tuple[str, ...], str]] = []

    def ask() -> None:
        try:
            found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except OSError as error:
            answers.append(((), error.strerror or str(error)))
        else:
            answers.append((tuple(dict.fromkeys(str(address[0]) for *_, address in found)), ""))

    # A name server that does not answer keeps the caller for half a minute, and nothing can interrupt it.
    thread = threading.Thread(target=ask, name=f"resolve-{name}", daemon=True)
    thread.start()
    thread.join(RESOLVE_LIMIT_S)
    return answers[0] if answers else ((), f"no answer within {RESOLVE_LIMIT_S:g} s")


def _parent_cpus(own: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the CPUs that our parent process may use; `own` where that cannot be seen."""
    affinity = getattr(os, "sched_getaffinity", None)
    try:
        return tuple(sorted(affinity(os.getppid()))) if affinity else own
    except OSError:  # it ended, or is in another name space
        return own


def _shared_memory() -> tuple[int | None, int | None]:
    """Returns size and free bytes of /dev/shm; None for both without one."""
    if not SHARED_MEMORY.is_dir():
        return None, None
    state = os.statvfs(SHARED_MEMORY)
    return state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize


def _memory() -> int | None:
    """Returns the bytes of memory available to this process: the least of system and control group; None if unknown."""
    file = Path("/proc/meminfo")
    lines = file.read_text().splitlines() if file.exists() else []
    sizes = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    left = cgroup.memory_left()
    return min([*sizes, *([] if left is None else [left])], default=None)


def _limit(which: int) -> tuple[int | None, int | None]:
    """Returns the soft and hard resource limit; None for one that is unlimited."""
    soft, hard = (None if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(which))
    return soft, hard


def _torch() -> Torch:
    """Imports torch and returns its version, threads and GPUs, or why it cannot be used."""
    if importlib.util.find_spec("torch") is None:
        return Torch(error="it is not installed")
    try:
        import_to_stay("torch")
        import torch
    except (ImportError, OSError) as error:  # a library below it is missing or of another version
        return Torch(error=str(error).splitlines()[0] if str(error) else type(error).__name__)
    with warnings.catch_warnings(record=True) as said:  # a driver that is too old is only warned about
        warnings.simplefilter("always")
        num_gpus = int(torch.cuda.device_count()) if torch.cuda.is_available() else 0
    return Torch(
        version=str(torch.__version__),
        threads=int(torch.get_num_threads()),
        cuda=str(torch.version.cuda or ""),
        num_gpus=num_gpus,
        gpu_error=str(said[0].message).splitlines()[0] if said and not num_gpus else "",
        gpu_ids=tuple(str(torch.cuda.get_device_properties(number).uuid) for number in range(num_gpus)),
    )
