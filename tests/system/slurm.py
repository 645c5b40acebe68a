"""A real SLURM cluster on this machine, for tests: one controller and three nodes n1, n2, n3 with two CPUs each, on loopback.

The nodes share this machine's host name and resolve to 127.0.0.1, so a program that takes the host name for the node goes wrong.
Daemons are children that die with the one who started them; state, logs, key and socket lie in one temporary folder.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from pathlib import Path

from tests.system.ports import free_ports
from tests.system.processes import Outcome, daemon, is_running, plain_environment, within

NODES = ("n1", "n2", "n3")
UNFINISHED = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")
START_LIMIT_S = 40.0
HOSTS_FILE = Path("/etc/hosts")
PROGRAMS = {"slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client", "munged": "munge"}
SEARCH_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))

CONFIGURATION = """\
ClusterName={name}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1
ReturnToService=2
KillWait=5
MpiDefault=none
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True)
class SlurmCluster:
    """A running cluster. `environment` makes srun, sbatch and the others talk to it."""

    folder: Path
    environment: Mapping[str, str]

    def ask(self, *command: str) -> str:
        """What a SLURM command prints; its failure is an error that shows what it said."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=30)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed with {done.returncode}: {done.stderr.strip()}")
        return done.stdout.strip()

    def submit(self, script: str, *options: str) -> SlurmJob:
        """Hand a batch script to sbatch; its output lands in the cluster's folder."""
        name = f"batch-{secrets.token_hex(4)}"
        path, output = self.folder / f"{name}.sh", self.folder / f"{name}.out"
        path.write_text(f"#!/usr/bin/env bash\nset -euo pipefail\n{script}\n")
        number = self.ask("sbatch", "--parsable", f"--output={output}", "--open-mode=append", *options, str(path))
        return SlurmJob(self, number, script, output)

    def end_jobs(self) -> None:
        """Blocking: end what a failed test left behind; it would stand in the way of the next and outlive the daemons."""
        if self.ask("squeue", "--noheader"):
            self.ask("scancel", "--user=root")
            if not within(START_LIMIT_S, lambda: not self.ask("squeue", "--noheader")):
                raise RuntimeError(f"jobs are left in the SLURM test cluster:\n{self.ask('squeue')}")


@dataclass(frozen=True)
class SlurmJob:
    """A submitted batch job."""

    cluster: SlurmCluster
    number: str
    script: str
    output: Path

    def finish(self, limit_s: float) -> Outcome:
        """Blocking: until the job ends; over the limit it is cancelled and the outcome shows what it had printed."""
        overdue = "" if within(limit_s, lambda: self._state()[0] not in UNFINISHED) else f", over {limit_s:g} s"
        if overdue:
            self.cluster.ask("scancel", self.number)
        state, code = self._state()
        if state != "COMPLETED":
            code = code or 1  # a job that was cancelled has none
        printed = self.output.read_text(errors="replace") if self.output.exists() else ""
        return Outcome(f"batch job {self.number} ({state}{overdue}): {self.script}", code, printed)

    def _state(self) -> tuple[str, int]:
        shown = self.cluster.ask("scontrol", "--oneliner", "show", "job", self.number)
        found = re.search(r"JobState=(\S+).* ExitCode=(\d+):(\d+)", shown)
        if not found:
            raise RuntimeError(f"scontrol shows no state and exit code of job {self.number}: {shown}")
        # Left of the colon stands what the script returned, right of it the signal that ended it.
        return found.group(1), int(found.group(2)) or -int(found.group(3))


def why_not() -> str | None:
    """Why no cluster can be started here, with the remedy; None where one can."""
    if os.geteuid() != 0:
        return "SLURM's daemons need root; run the tests as root"
    missing = [package for program, package in PROGRAMS.items() if not shutil.which(program, path=SEARCH_PATH)]
    if missing:
        return f"SLURM is not installed; run tests/system/install, or apt-get install {' '.join(missing)}"
    return None


@contextmanager
def slurm_cluster() -> Iterator[SlurmCluster]:
    """Start a cluster, and take away all of it at the end: daemons, jobs, folder, lines in /etc/hosts."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="unisono-slurm-")))
        # munged refuses to serve from a folder that others cannot enter.
        folder.chmod(0o755)
        environment = plain_environment() | {"PATH": SEARCH_PATH, "SLURM_CONF": str(folder / "slurm.conf")}
        cluster = SlurmCluster(folder, environment)
        _write_configuration(folder)
        stack.enter_context(_named_in_hosts_file(NODES))
        stack.enter_context(_munge(folder, environment))
        commands = {"slurmctld": ["slurmctld", "-D"]} | {node: ["slurmd", "-D", "-N", node] for node in NODES}
        daemons = [stack.enter_context(daemon(command, environment, folder / f"{name}.out")) for name, command in commands.items()]

        def ready() -> bool:
            return any(process.poll() is not None for process in daemons) or _num_idle(cluster) == len(NODES)

        if not within(START_LIMIT_S, ready) or _num_idle(cluster) != len(NODES):
            raise RuntimeError(f"the SLURM test cluster did not come up:\n{_logs(folder)}")
        stack.callback(cluster.end_jobs)
        yield cluster


def _write_configuration(folder: Path) -> None:
    for name in ("state", "munge", *(f"spool.{node}" for node in NODES)):
        (folder / name).mkdir(mode=0o755)
    host = socket.gethostname()
    control_port, *node_ports = free_ports(1 + len(NODES))
    nodes = "\n".join(
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=4000"
        for node, port in zip(NODES, node_ports, strict=True)
    )
    # Job numbers begin at 1 in every cluster, so the name is what tells the jobs of two runs from each other.
    name = f"unisono{os.getpid()}"
    text = CONFIGURATION.format(name=name, folder=folder, host=host, control_port=control_port, nodes=nodes)
    (folder / "slurm.conf").write_text(text)
    # Nothing here uses control groups, and containers often have none; before 24.05 there is no word for that.
    if _version() >= (24, 5):
        (folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n")


def _version() -> tuple[int, int]:
    command = [shutil.which("slurmd", path=SEARCH_PATH) or "slurmd", "-V"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    found = re.search(r"(\d+)\.(\d+)", shown)
    if not found:
        raise RuntimeError(f"{' '.join(command)} gives no version: {shown!r}")
    return int(found.group(1)), int(found.group(2))


@contextmanager
def _munge(folder: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """An authentication service of our own, so that one of the system, or of another run, is neither needed nor touched."""
    home = folder / "munge"
    key = home / "key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    command = [
        "munged",
        "--foreground",
        f"--socket={home}/socket",
        f"--key-file={key}",
        f"--pid-file={home}/pid",
        f"--log-file={home}/log",
        f"--seed-file={home}/seed",
    ]
    with daemon(command, environment, folder / "munged.out") as process:
        if not within(START_LIMIT_S, lambda: process.poll() is not None or (home / "socket").exists()):
            raise RuntimeError(f"munged did not come up within {START_LIMIT_S:g} s:\n{_logs(folder)}")
        if process.poll() is not None:
            raise RuntimeError(f"munged ended at once with {process.returncode}:\n{_logs(folder)}")
        yield


@contextmanager
def _named_in_hosts_file(names: Sequence[str]) -> Iterator[None]:
    """Lets `names` resolve to this machine by one marked line, also when several runs do so at once."""
    mark = f"# unisono test cluster {os.getpid()}"
    _edit_hosts_file(lambda lines: [*lines, f"127.0.0.1 {' '.join(names)} {mark}"])
    try:
        yield
    finally:
        _edit_hosts_file(lambda lines: [line for line in lines if not line.endswith(mark)])


def _edit_hosts_file(change: Callable[[list[str]], list[str]]) -> None:
    """Changes the file where it is (in a container it may be a mount, which cannot be replaced) and drops what dead runs left."""
    with HOSTS_FILE.open("r+") as file:
        flock(file, LOCK_EX)
        lines = [line for line in file.read().splitlines() if not _left_by_a_dead_run(line)]
        text = "".join(f"{line}\n" for line in change(lines))
        file.seek(0)
        file.write(text)
        file.truncate()


def _left_by_a_dead_run(line: str) -> bool:
    marked = re.search(r"# unisono test cluster (\d+)$", line)
    return marked is not None and not is_running(int(marked.group(1)))


def _num_idle(cluster: SlurmCluster) -> int:
    command = ("sinfo", "--noheader", "--states=idle", "--format=%D")
    done = subprocess.run(command, env=cluster.environment, capture_output=True, text=True, timeout=30)
    return sum(int(word) for word in done.stdout.split()) if done.returncode == 0 else 0


def _logs(folder: Path) -> str:
    files = sorted([*folder.glob("*.log"), *folder.glob("*.out"), *folder.glob("munge/log")])
    return "\n".join(f"--- {file.name}\n{_last_lines(file)}" for file in files)


def _last_lines(file: Path, count: int = 15) -> str:
    return "\n".join(file.read_text(errors="replace").splitlines()[-count:])
