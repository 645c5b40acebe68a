"""The command lines by which another launcher starts the ranks; each of them then becomes the program (`unisono run --horovod`)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unisono.errors import UsageError
from unisono.horovod._impl.launching.host_slots import Hosts, shown


@dataclass(frozen=True)
class Wanted:
    """What to start."""

    num_proc: int
    hosts: Hosts | None
    """None: where the launcher likes."""
    words: tuple[str, ...]
    """What each process runs."""
    output: str | None = None
    """Folder for the lines of each rank."""


def by_srun(wanted: Wanted, env: Mapping[str, str]) -> list[str]:
    """Pure: inside a SLURM allocation. When a rank fails, SLURM ends the others."""
    command = ["srun", f"--ntasks={wanted.num_proc}", "--kill-on-bad-exit=1", "--label", "--export=ALL"]
    if wanted.hosts is not None:
        counts = {slots for _, slots in wanted.hosts}
        command.append(f"--nodes={len(wanted.hosts)}")
        if len(counts) == 1:
            command += [f"--nodelist={','.join(name for name, _ in wanted.hosts)}", f"--ntasks-per-node={counts.pop()}"]
        else:
            repeated = ",".join(name for name, slots in wanted.hosts for _ in range(slots))
            command += ["--distribution=arbitrary", f"--nodelist={repeated}"]
    if env.get("SLURM_STEP_ID"):
        command.append("--overlap")  # this shell is a step itself, and would keep the CPUs to itself
    if any(env.get(name) for name in ("SLURM_GPUS", "SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_TASK")):
        command.append("--gpu-bind=none")  # programs choose their GPU by local rank among all of the node
    if wanted.output is not None:
        command.append(f"--output={wanted.output}/rank-%t.log")
    return [*command, *wanted.words]


@dataclass(frozen=True)
class MpiWishes:
    """What only mpirun understands."""

    words: str = ""
    binding: str = ""
    tcp: bool = False
    ssh_port: int | None = None
    ssh_key: str | None = None


def by_mpirun(mpirun: str, is_open_mpi: bool, wanted: Wanted, wishes: MpiWishes, exported: Sequence[str]) -> list[str]:
    """Pure; may raise `UsageError`. `exported`: variables for other hosts; Open MPI takes only those that it is told of."""
    if not is_open_mpi:
        _refuse_words_of_open_mpi(mpirun, wishes)
    command = [mpirun, "-np", str(wanted.num_proc)]
    if wanted.hosts is not None:
        command += ["-H" if is_open_mpi else "-hosts", shown(wanted.hosts)]
    if is_open_mpi:
        command += ["--allow-run-as-root", "--tag-output"]
        for name in exported:
            command += ["-x", name]
        if wishes.tcp:
            command += ["--mca", "pml", "ob1", "--mca", "btl", "^openib"]
        ssh = (
            ["ssh"] + (["-p", str(wishes.ssh_port)] if wishes.ssh_port else []) + (["-i", wishes.ssh_key] if wishes.ssh_key else [])
        )
        if len(ssh) > 1:
            command += ["--mca", "plm_rsh_agent", shlex.join(ssh)]
    command += _split(wishes.binding, "--binding-args") if wishes.binding else ["--bind-to", "none"]
    return [*command, *_split(wishes.words, "--mpi-args"), *wanted.words]


def _split(text: str, flag: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{flag} {text!r} cannot be split into words: {error}; check its quotes") from error


def _refuse_words_of_open_mpi(mpirun: str, wishes: MpiWishes) -> None:
    given = (("--tcp", wishes.tcp), ("--ssh-port", wishes.ssh_port), ("--ssh-identity-file", wishes.ssh_key))
    for flag, value in given:
        if value:
            raise UsageError(
                f"{flag} is passed on to Open MPI only, and {mpirun} is another MPI; give its own words (--mpi-args), "
                "or a Host entry in ~/.ssh/config"
            )
