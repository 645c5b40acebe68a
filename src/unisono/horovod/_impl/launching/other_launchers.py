"""The command lines by which another launcher starts the ranks; each of them then becomes the program (`unisono run --horovod`)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unisono.errors import UsageError
from unisono.horovod._impl.launching.host_slots import Hosts, hosts_text


@dataclass(frozen=True)
class LaunchRequest:
    """What another launcher is to start."""

    num_proc: int
    hosts: Hosts | None
    """None: the launcher chooses."""
    words: tuple[str, ...]
    """What each process runs."""
    output: str | None = None
    """Folder for the lines of each rank."""


def by_srun(request: LaunchRequest, env: Mapping[str, str]) -> list[str]:
    """Returns the command line of srun inside a SLURM allocation; when a rank fails, SLURM ends the others. Pure."""
    command = ["srun", f"--ntasks={request.num_proc}", "--kill-on-bad-exit=1", "--label", "--export=ALL"]
    if request.hosts is not None:
        counts = {slots for _, slots in request.hosts}
        command.append(f"--nodes={len(request.hosts)}")
        if len(counts) == 1:
            command += [f"--nodelist={','.join(name for name, _ in request.hosts)}", f"--ntasks-per-node={counts.pop()}"]
        else:
            repeated = ",".join(name for name, slots in request.hosts for _ in range(slots))
            command += ["--distribution=arbitrary", f"--nodelist={repeated}"]
    if env.get("SLURM_STEP_ID"):
        command.append("--overlap")  # this shell is a step itself, and would keep the CPUs to itself
    if any(env.get(name) for name in ("SLURM_GPUS", "SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_TASK")):
        command.append("--gpu-bind=none")  # programs choose their GPU by local rank among all of the node
    if request.output is not None:
        command.append(f"--output={request.output}/rank-%t.log")
    return [*command, *request.words]


@dataclass(frozen=True)
class MpiLaunchOptions:
    """Options that only mpirun understands."""

    words: str = ""
    binding: str = ""
    tcp: bool = False
    ssh_port: int | None = None
    ssh_key: str | None = None


def by_mpirun(
    mpirun: str, is_open_mpi: bool, request: LaunchRequest, options: MpiLaunchOptions, exported: Sequence[str]
) -> list[str]:
    """Returns the command line of mpirun; may raise `UsageError`. `exported`: variables for other hosts, which Open MPI passes on
    only by name. Pure."""
    if not is_open_mpi:
        _refuse_open_mpi_options(mpirun, options)
    command = [mpirun, "-np", str(request.num_proc)]
    if request.hosts is not None:
        command += ["-H" if is_open_mpi else "-hosts", hosts_text(request.hosts)]
    if is_open_mpi:
        command += ["--allow-run-as-root", "--tag-output"]
        for name in exported:
            command += ["-x", name]
        if options.tcp:
            command += ["--mca", "pml", "ob1", "--mca", "btl", "^openib"]
        ssh = (
            ["ssh"]
            + (["-p", str(options.ssh_port)] if options.ssh_port else [])
            + (["-i", options.ssh_key] if options.ssh_key else [])
        )
        if len(ssh) > 1:
            command += ["--mca", "plm_rsh_agent", shlex.join(ssh)]
    command += _words_of(options.binding, "--binding-args") if options.binding else ["--bind-to", "none"]
    return [*command, *_words_of(options.words, "--mpi-args"), *request.words]


def _words_of(text: str, flag: str) -> list[str]:
    """Returns the words of a text as a shell splits it; `UsageError`, which names the flag, for one whose quotes are wrong."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{flag} {text!r} cannot be split into words: {error}; check its quotes") from error


def _refuse_open_mpi_options(mpirun: str, options: MpiLaunchOptions) -> None:
    """Raises `UsageError` for options that only Open MPI understands, as `mpirun` is another MPI."""
    given = (("--tcp", options.tcp), ("--ssh-port", options.ssh_port), ("--ssh-identity-file", options.ssh_key))
    for flag, value in given:
        if value:
            raise UsageError(
                f"{flag} works with Open MPI only, and {mpirun} is another MPI; give the arguments of that mpirun (--mpi-args), or "
                "write a Host entry in ~/.ssh/config"
            )
