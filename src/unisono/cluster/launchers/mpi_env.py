"""Topology under mpirun: Open MPI, and MPICH, Intel MPI and others that speak PMI. Pure.

These launchers number the processes of a node but not the nodes, and do not say where rank 0 is. On one node that is no
matter; inside a SLURM job rank 0 is expected on the job's first host; elsewhere `address` is None and MPI must be asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unisono.cluster.launchers import slurm
from unisono.cluster.rendezvous import derived_port, job_token
from unisono.cluster.topology import NotThisLauncher, Overrides, Topology
from unisono.cluster.variables import first_set, whole_numbers
from unisono.errors import UsageError

OPEN_MPI = (
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)
PMI = ("PMI_RANK", "PMI_SIZE")
PMI_LOCAL_RANK = ("MPI_LOCALRANKID", "PMI_LOCAL_RANK")
PMI_LOCAL_SIZE = ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE")
"""Hydra's names (MPICH, Intel MPI), then Cray's."""

OPEN_MPI_JOB = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")
PMI_JOB = ("I_MPI_HYDRA_UUID", "PALS_APID", "PMI_PORT")
"""Variables that identify one call of mpirun, equal on all of its processes. MPICH has none of these (see `needs_name`)."""

HOST = ("PMIX_HOSTNAME", "PMI_HOSTNAME", "HYDRA_BSTRAP_LOCALHOST")
"""Variables with the launcher's name of this node."""

SELECTION = ("OMPI_MCA_coll_", "I_MPI_ADJUST_", "I_MPI_COLL_", "MPIR_CVAR_ALLREDUCE_", "MPIR_CVAR_COLL_")
"""Beginnings of the variables by which users steer a library's own choice of algorithms."""


def mpi_selection(env: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Returns the user's settings of the MPI library's choice of algorithms; they are recorded with the run."""
    return tuple(sorted((name, value) for name, value in env.items() if name.startswith(SELECTION)))


@dataclass(frozen=True)
class _Position:
    rank: int
    world_size: int
    local_rank: int
    local_size: int

    @property
    def one_node(self) -> bool:
        """Whether all processes of the job run on this node."""
        return self.local_size == self.world_size


def resolve_open_mpi(env: Mapping[str, str], overrides: Overrides) -> Topology | NotThisLauncher:
    """Returns the topology of this rank of Open MPI's mpirun; the reason if it did not start this process. Raises `UsageError` for
    variables that are half set.
    """
    if first_set(env, OPEN_MPI[:2]) is None:
        return NotThisLauncher("OMPI_COMM_WORLD_RANK is not set, so Open MPI's mpirun did not start this process")
    # OMPI_COMM_WORLD_NODE_RANK also exists: it is a rank within the node, not the rank of the node.
    position = _Position(*whole_numbers(env, OPEN_MPI, "Open MPI", "start with mpirun, or unset all OMPI_ variables"))
    return _mpi_topology("openmpi", position, _job_identity(env, OPEN_MPI_JOB), env, overrides)


def resolve_pmi(env: Mapping[str, str], overrides: Overrides) -> Topology | NotThisLauncher:
    """Returns the topology of this rank of an mpirun of MPICH or Intel MPI; the reason if none started this process, or SLURM's
    variables say more. Raises `UsageError` for variables that are half set.
    """
    if first_set(env, (*PMI, "PMI_ID")) is None:
        return NotThisLauncher("PMI_RANK is not set, so no mpirun of MPICH or Intel MPI started this process")
    by_srun = env.get("PMI_RANK", "") == env.get("SLURM_PROCID") and slurm.outside_step(env) is None
    if by_srun and first_set(env, PMI_LOCAL_RANK) is None:
        return NotThisLauncher("srun itself set PMI_RANK (--mpi), so SLURM's own variables are used")
    remedy = "start with mpirun (without -pmi-port), or unset all PMI_ variables"
    position = _Position(*whole_numbers(env, (*PMI, PMI_LOCAL_RANK, PMI_LOCAL_SIZE), "PMI", remedy))
    return _mpi_topology("pmi", position, _pmi_identity(env), env, overrides)


def needs_name(env: Mapping[str, str]) -> bool:
    """Whether nothing in the environment identifies the job, though its processes, all on this node, must tell it from others."""
    if (
        env.get("UNISONO_TOKEN")
        or env.get("UNISONO_LAUNCH")
        or not all(first_set(env, n) for n in (PMI[:1], PMI[1:], PMI_LOCAL_RANK, PMI_LOCAL_SIZE))
    ):
        return False
    # As texts: whether they are numbers is for `resolve_pmi` to say.
    return _job_identity(env, PMI_JOB) is None and env["PMI_SIZE"] == _job_identity(env, PMI_LOCAL_SIZE)


def _pmi_identity(env: Mapping[str, str]) -> str | None:
    """Returns the name of the job under MPICH or Intel MPI, if need be that of its SLURM step; None where nothing names it."""
    identity = _job_identity(env, PMI_JOB)
    if identity is None and env.get("SLURM_JOB_ID") and slurm.outside_step(env) is None:
        # MPICH starts one proxy on each node, all of them in one step of their own.
        return f"{env['SLURM_JOB_ID']}.{env['SLURM_STEP_ID']}"
    return identity


def _job_identity(env: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    """Returns the value of the first of these variables that is set; None where none names the job."""
    name = first_set(env, names)
    return env[name] if name else None


def _mpi_topology(
    launcher: str, position: _Position, identity: str | None, env: Mapping[str, str], overrides: Overrides
) -> Topology:
    """Returns the topology of a process that mpirun started. What only MPI knows is None or empty; raises `UsageError` where jobs
    on one node could meet.
    """
    identity = identity or env.get("UNISONO_LAUNCH") or env.get("UNISONO_TOKEN")
    if identity is None and position.one_node and position.world_size > 1:
        raise UsageError(
            "this mpirun gives its job no name, so two jobs on one node could be mixed up (environment); "
            "before mpirun, export UNISONO_TOKEN=$(openssl rand -hex 16)"
        )
    token = job_token(launcher, str(position.world_size), identity) if identity else ""
    return Topology(
        launcher=launcher,
        global_rank=position.rank,
        world_size=position.world_size,
        local_rank=position.local_rank,
        local_size=position.local_size,
        node_rank=0 if position.one_node else None,
        num_nodes=1 if position.one_node else None,
        # Processes that do not know the job's name must ask MPI for that too.
        address="127.0.0.1" if position.one_node else _first_host(env, position) if identity else None,
        port=overrides.port or derived_port(token),
        token=token,
        node_name=env[name] if (name := first_set(env, HOST)) else "",
        job=f"{launcher} {identity}" if identity else launcher,
    )


def _first_host(env: Mapping[str, str], position: _Position) -> str | None:
    """Returns the host on which rank 0 is expected; None where only MPI knows. Raises in rank 0 if it runs elsewhere."""
    if env.get("UNISONO_RENDEZVOUS"):
        return None  # where somebody said where to meet, the order of the hosts does not matter
    hosts = slurm.job_hosts(env)
    if not hosts:
        return None
    name = first_set(env, HOST)
    own_host = env[name].split(".")[0] if name else ""
    if position.rank == 0 and own_host != hosts[0].split(".")[0] and own_host in (host.split(".")[0] for host in hosts):
        raise UsageError(
            f"rank 0 runs on {own_host} ({name}) but the other ranks look for it on {hosts[0]}, the first host of SLURM job "
            f"{env['SLURM_JOB_ID']}; start rank 0 there, or export UNISONO_RENDEZVOUS={own_host}:PORT before mpirun"
        )
    return hosts[0]
