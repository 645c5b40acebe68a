"""Environments as real launchers made them, reduced to what bears on the question "who am I".

SLURM 22.05, Open MPI 5.0, MPICH 5.0, Intel MPI 2021 and torch 2.13, seen on a cluster of nodes n1, n2, n3 that were one
machine; names of other machines and paths are replaced. Where one machine cannot show it, the values are those of separate
nodes: Open MPI's second node, and torchrun's MASTER_ADDR (it was localhost).
"""

from __future__ import annotations

from collections.abc import Mapping

Env = Mapping[str, str]


def parse(text: str) -> Env:
    return dict(line.strip().split("=", 1) for line in text.strip().splitlines())


_JOB = """
SLURM_CLUSTER_NAME=test
SLURM_JOBID=2
SLURM_JOB_ID=2
SLURM_JOB_NODELIST=n[1-2]
SLURM_JOB_NUM_NODES=2
SLURM_NNODES=2
SLURM_NODELIST=n[1-2]
SLURM_NPROCS=3
SLURM_NTASKS=3
SLURM_TASKS_PER_NODE=2,1
"""

SALLOC_SHELL = parse(_JOB)
"""`salloc -N2 -n3`: a shell on the login node."""

SBATCH_SHELL = parse(
    _JOB
    + """
SLURMD_NODENAME=n1
SLURM_GTIDS=0
SLURM_JOB_UID=1000
SLURM_LOCALID=0
SLURM_NODEID=0
SLURM_PROCID=0
""".lstrip()
)
"""`sbatch -N2 -n3`: the script itself, with the variables of a rank."""

SALLOC_INTERACTIVE_STEP = parse(
    _JOB
    + """
SLURMD_NODENAME=n1
SLURM_GTIDS=0
SLURM_JOB_UID=1000
SLURM_LOCALID=0
SLURM_NODEID=0
SLURM_PROCID=0
SLURM_PTY_PORT=39611
SLURM_STEPID=4294967290
SLURM_STEP_ID=4294967290
SLURM_STEP_NODELIST=n1
SLURM_STEP_NUM_NODES=1
SLURM_STEP_NUM_TASKS=1
SLURM_STEP_TASKS_PER_NODE=1
""".lstrip()
)
"""`salloc -N2 -n3` with LaunchParameters=use_interactive_step: a shell on the first node."""


def srun(rank: int) -> Env:
    """`srun -N2 -n3`: ranks 0 and 1 on n1, rank 2 on n2."""
    node = 0 if rank < 2 else 1
    return {
        **SALLOC_SHELL,
        "SLURMD_NODENAME": f"n{node + 1}",
        "SLURM_GTIDS": ("0,1", "2")[node],
        "SLURM_JOB_UID": "1000",
        "SLURM_LOCALID": str(rank - 2 * node),
        "SLURM_NODEID": str(node),
        "SLURM_PROCID": str(rank),
        "SLURM_STEPID": "0",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_LAUNCHER_PORT": "36477",
        "SLURM_STEP_NODELIST": "n[1-2]",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NUM_TASKS": "3",
        "SLURM_STEP_TASKS_PER_NODE": "2,1",
    }


SRUN_ON_PART_OF_THE_JOB = {
    **SALLOC_SHELL,
    "SLURMD_NODENAME": "n2",
    "SLURM_JOB_UID": "1000",
    "SLURM_LOCALID": "0",
    "SLURM_NNODES": "1",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "1",
    "SLURM_PROCID": "0",
    "SLURM_STEP_ID": "4",
    "SLURM_STEP_NODELIST": "n2",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
    "SLURM_TASKS_PER_NODE": "1",
}
"""`srun -N1 -n1 -w n2` inside `salloc -N2 -n3`: the job's list still names both nodes."""


def srun_pmi2(rank: int) -> Env:
    """`srun --mpi=pmi2 -N2 -n3`."""
    return {**srun(rank), "PMI_FD": "13", "PMI_JOBID": "2.0", "PMI_RANK": str(rank), "PMI_SIZE": "3"}


def open_mpi(rank: int) -> Env:
    """`mpirun -n 2` on one machine."""
    return {
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "OMPI_COMM_WORLD_NODE_RANK": str(rank),
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_UNIVERSE_SIZE": "2",
        "PMIX_HOSTNAME": "laptop",
        "PMIX_NAMESPACE": "prterun-laptop-6520@1",
        "PMIX_RANK": str(rank),
    }


_DAEMONS_STEP = {
    "SLURM_LOCALID": "0",
    "SLURM_NPROCS": "2",
    "SLURM_NTASKS": "2",
    "SLURM_NTASKS_PER_NODE": "1",
    "SLURM_STEP_ID": "1",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_TASKS_PER_NODE": "1(x2)",
}
"""mpirun inside a SLURM job starts one daemon on each node with srun; the ranks inherit the daemon's place in that step."""


def open_mpi_in_sbatch(rank: int) -> Env:
    """`mpirun -n 3` in the script of `sbatch -N2 -n3`: ranks 0 and 1 on n1, rank 2 on n2."""
    node = 0 if rank < 2 else 1
    local_rank = str(rank - 2 * node)
    return {
        **SBATCH_SHELL,
        **_DAEMONS_STEP,
        "SLURMD_NODENAME": f"n{node + 1}",
        "SLURM_NODEID": str(node),
        "SLURM_PROCID": str(node),
        "OMPI_COMM_WORLD_LOCAL_RANK": local_rank,
        "OMPI_COMM_WORLD_LOCAL_SIZE": "21"[node],
        "OMPI_COMM_WORLD_NODE_RANK": local_rank,
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": "3",
        "PMIX_HOSTNAME": f"n{node + 1}",
        "PMIX_NAMESPACE": "prterun-n1-6659@1",
        "PMIX_RANK": str(rank),
    }


def mpich(rank: int) -> Env:
    """`mpirun -n 2` of MPICH on one machine: nothing names the job."""
    return {
        "HYDI_CONTROL_FD": "7",
        "MPI_LOCALNRANKS": "2",
        "MPI_LOCALRANKID": str(rank),
        "PMI_FD": ("9", "11")[rank],
        "PMI_HOSTNAME": "laptop",
        "PMI_RANK": str(rank),
        "PMI_SIZE": "2",
    }


MPICH_PMI_PORT = parse("""
HYDI_CONTROL_FD=7
MPI_LOCALNRANKS=2
MPI_LOCALRANKID=1
PMI_HOSTNAME=laptop
PMI_ID=1
PMI_PORT=laptop:40049
""")
"""`mpirun -pmi-port -n 2` of MPICH: the size is not said."""


def mpich_in_sbatch(rank: int) -> Env:
    """`mpirun -n 3 -ppn 2` of MPICH in the script of `sbatch -N2 -n3`."""
    node = 0 if rank < 2 else 1
    return {
        **SBATCH_SHELL,
        **_DAEMONS_STEP,
        "SLURMD_NODENAME": f"n{node + 1}",
        "SLURM_NODEID": str(node),
        "SLURM_PROCID": str(node),
        "MPI_LOCALNRANKS": "21"[node],
        "MPI_LOCALRANKID": str(rank - 2 * node),
        "PMI_FD": ("5", "6", "5")[rank],
        "PMI_HOSTNAME": f"n{node + 1}",
        "PMI_RANK": str(rank),
        "PMI_SIZE": "3",
    }


def intel_mpi(rank: int) -> Env:
    """`mpirun -n 2` of Intel MPI on one machine."""
    return {
        "HYDRA_BSTRAP_LOCALHOST": "laptop",
        "I_MPI_HYDRA_UUID": "381b0000-bdbc-bd13-4760-0600d9cd4b14",
        "I_MPI_MPIRUN": "mpirun",
        "I_MPI_PIN_INFO": str(rank),
        "MPI_LOCALNRANKS": "2",
        "MPI_LOCALRANKID": str(rank),
        "PMI_FD": ("9", "11")[rank],
        "PMI_RANK": str(rank),
        "PMI_SIZE": "2",
    }


def intel_mpi_in_sbatch(rank: int) -> Env:
    """`mpirun -n 3 -ppn 2` of Intel MPI in the script of `sbatch -N2 -n3`; it hands the script's SLURM variables to all."""
    node = 0 if rank < 2 else 1
    return {
        **SBATCH_SHELL,
        **_DAEMONS_STEP,
        "SLURM_NTASKS": "3",
        "SLURM_NODEID": str(node),
        "SLURM_PROCID": str(node),
        "HYDRA_BSTRAP_LOCALHOST": f"n{node + 1}",
        "I_MPI_HYDRA_BOOTSTRAP": "slurm",
        "I_MPI_HYDRA_UUID": "151d0000-c8eb-e01a-4760-060011d4f23d",
        "MPI_LOCALNRANKS": "21"[node],
        "MPI_LOCALRANKID": str(rank - 2 * node),
        "PMI_FD": ("5", "6", "5")[rank],
        "PMI_RANK": str(rank),
        "PMI_SIZE": "3",
    }


def torchrun(rank: int) -> Env:
    """`torchrun --standalone --nproc-per-node 2`."""
    return {
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "41003",
        "RANK": str(rank),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": "2",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_RUN_ID": "ae040e2d-339d-4078-87a0-f03f4713a9d2",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": "2",
    }


def torchrun_in_srun(rank: int) -> Env:
    """`srun -N2 -n2 torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d`: one agent on each node."""
    node, local_rank = divmod(rank, 2)
    return {
        **SALLOC_SHELL,
        **_DAEMONS_STEP,
        "SLURMD_NODENAME": f"n{node + 1}",
        "SLURM_NODEID": str(node),
        "SLURM_PROCID": str(node),
        **torchrun(local_rank),
        "GROUP_RANK": str(node),
        "GROUP_WORLD_SIZE": "2",
        "MASTER_ADDR": "n1",
        "MASTER_PORT": "33191",
        "RANK": str(rank),
        "TORCHELASTIC_RUN_ID": "6",
        "WORLD_SIZE": "4",
    }


def own(rank: int) -> Env:
    """`unisono run -n 2`."""
    return {
        "UNISONO_RANK": str(rank),
        "UNISONO_WORLD_SIZE": "2",
        "UNISONO_LOCAL_RANK": str(rank),
        "UNISONO_LOCAL_SIZE": "2",
        "UNISONO_NODE_RANK": "0",
        "UNISONO_NUM_NODES": "1",
        "UNISONO_RENDEZVOUS": "127.0.0.1:20007",
        "UNISONO_LAUNCH": "0123456789abcdef",
        "UNISONO_TOKEN": "fedcba9876543210",
        "UNISONO_JOB": "hello.py",
    }
