"""How a worker is started: as a process here, through srun inside a SLURM allocation, or through ssh."""

from __future__ import annotations

import selectors
import shlex
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Protocol

from unisono.cluster.machine.affinity import threads_per_worker
from unisono.cluster.rendezvous import chosen_rendezvous, host_port
from unisono.errors import UsageError
from unisono.horovod._impl.elastic.elastic_plan import ElasticPlan
from unisono.horovod._impl.elastic.worker_environment import WORKER
from unisono.horovod._impl.launching.host_slots import is_here
from unisono.horovod._impl.launching.ssh_words import CARRIED, ssh_words
from unisono.launch.orphans import OrphanGuard, preexec_of_rank
from unisono.launch.output import LauncherOutput
from unisono.launch.rank_env import THREAD_VARIABLES
from unisono.launch.rank_process import RankProcess, start_process
from unisono.launch.signals import SignalInbox
from unisono.launch.ssh import remote_watchdog

PIPE_BYTES = 1 << 16
"""What a pipe takes although nobody reads it."""


class Hosts(Protocol):
    """Starts workers on hosts."""

    def start(self, host: str, slot: int, env: Mapping[str, str]) -> RankProcess:
        """Starts a worker with this environment, which has its number. Local, not blocking."""


def own_name(hosts: Sequence[str], env: Mapping[str, str]) -> str:
    """Returns the name by which all these hosts reach this machine: the one that the user has chosen, or its host name. Local."""
    if all(is_here(host) for host in hosts):
        return "127.0.0.1"
    chosen = chosen_rendezvous(env)
    return host_port(chosen, "UNISONO_RENDEZVOUS")[0] if chosen else socket.gethostname()


def remote_script(arguments: Sequence[str], env: Mapping[str, str], folder: str) -> str:
    """Returns the script for a shell on another host. The shell reads it from standard input, as everybody may read a command line;
    the rest of standard input is for the watchdog, which ends the worker when it ends. Pure."""
    chosen = {name: env[name] for name in sorted(env) if CARRIED.fullmatch(name) and name.isidentifier()}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in chosen.items()]
    return "\n".join((f"cd {shlex.quote(folder)} || exit 1", *lines, f"exec {shlex.join(remote_watchdog.argv_of(arguments))}", ""))


@dataclass(frozen=True)
class RealHosts:
    """Starts processes of this machine: workers, or the programs that start workers elsewhere."""

    plan: ElasticPlan
    selector: selectors.BaseSelector
    inbox: SignalInbox
    orphan_guard: OrphanGuard
    console: LauncherOutput
    logs: Path | None

    def start(self, host: str, slot: int, env: Mapping[str, str]) -> RankProcess:
        """Starts a worker: here, through srun inside a SLURM allocation, or through ssh. Raises `UsageError` if that is not
        possible."""
        number = int(env[WORKER])
        script: bytes | None = None
        arguments: Sequence[str] = self.plan.command
        if is_here(host):
            env = _with_threads(env, self.plan)
        elif env.get("SLURM_JOB_ID"):
            place = ("--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={host}", "--export=ALL", "--unbuffered")
            arguments = ("srun", *place, *self.plan.command)
        else:
            arguments = (*ssh_words(host, self.plan.ssh_port, self.plan.ssh_identity_file), "sh")
            script = remote_script(self.plan.command, env, str(Path.cwd())).encode()
            if len(script) > PIPE_BYTES:
                longest = max((name for name in env if CARRIED.fullmatch(name)), key=lambda name: len(env[name]))
                raise UsageError(
                    f"worker {number} cannot be started on {host}:{slot}: its environment variables take {len(script)} bytes, more "
                    f"than {PIPE_BYTES}; shorten or unset some, e.g. {longest}"
                )
        log = None if self.logs is None else _open_log(self.logs / f"rank-{number}.log")
        try:
            stdin = subprocess.DEVNULL if script is None else subprocess.PIPE
            with self.inbox.blocked() as mask:
                process, out, err = start_process(arguments, env, stdin, preexec_of_rank(mask))
        except OSError as error:
            if log is not None:
                log.close()
            raise UsageError(
                f"worker {number} cannot be started on {host}:{slot} ({arguments[0]}): {error.strerror}; check the program, and "
                "the limits on processes and open files (ulimit -u, ulimit -n)"
            ) from error
        if script is not None and process.stdin is not None:
            # A pipe holds it, so this does not wait; if ssh has ended already, its code tells. The pipe stays open:
            # its end is the end of the worker.
            with suppress(BrokenPipeError):
                process.stdin.write(script)
        self.orphan_guard.add_group(process.pid)
        return RankProcess(number, process, self.console.attach(number, out, err, log))


def _open_log(path: Path) -> FileIO:
    """Opens a new log: worker numbers are unique in a job, so an existing file belongs to an earlier job."""
    try:
        return FileIO(path, "wb")
    except OSError as error:
        raise UsageError(
            f"the log {path} cannot be written (--output-filename): {error.strerror}; choose another folder"
        ) from error


def _with_threads(env: Mapping[str, str], plan: ElasticPlan) -> dict[str, str]:
    """The environment with a share of the CPUs for each worker on one machine."""
    threads = str(threads_per_worker(plan.num_proc))
    return {**{name: threads for name in THREAD_VARIABLES if not env.get(name)}, **env}
