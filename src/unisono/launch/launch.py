"""`unisono run`: starts the ranks of one node, forwards their output and signals, and ends them all when one fails."""

from __future__ import annotations

import os
import secrets
import selectors
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import time

from unisono.cluster import gpus
from unisono.cluster.machine import affinity
from unisono.cluster.rendezvous import derived_port, host_port, job_token
from unisono.cluster.terminal import columns_of
from unisono.cluster.topology import ALLREDUCES, ENGINES
from unisono.errors import UsageError
from unisono.launch.control_messages import SIGNAL_RECEIVED, ControlInput, secret_from_stdin
from unisono.launch.last_lines import exit_code_of_lost_output, flush_output
from unisono.launch.launch_options import check_launch_options, launch_options
from unisono.launch.orphans import OrphanGuard, preexec_of_rank
from unisono.launch.output import LauncherOutput, LogFolder
from unisono.launch.program import command
from unisono.launch.rank_env import Placement, rank_environment, refuse_inside_launched_process
from unisono.launch.rank_process import RankProcess, start_process
from unisono.launch.signals import SignalInbox
from unisono.launch.world import Outcome, World
from unisono.task.options import REQUIRED, check, option

BINDINGS = ("cpus", "none")
GPU_POLICIES = ("one", "all")
DEFAULT_RESTARTS = 3
FAILURE_POLICIES = ("end", "continue", "restart", "elastic")
OUTPUT_FROM = ("all", "first")
FINAL_CODES = (0, 2, 75)
"""Exit codes after which ranks are not restarted: finished, a user's mistake, stopped with a checkpoint saved."""


def _counts(given: str | tuple[int, ...]) -> tuple[int, ...]:
    """Pure: parses a list of counts, e.g. 4,4,2."""
    try:
        return tuple(map(int, given.split(","))) if isinstance(given, str) else given
    except ValueError:
        raise UsageError(f"--on-nodes must be whole numbers separated by commas; received {given!r}") from None


@dataclass(frozen=True)
class LaunchConfig:
    """The options of one launch. Local; values that cannot work are refused with the name of the option of `unisono run`."""

    program: tuple[str, ...]
    """The program as typed: a script, an executable or `-m module`, then its arguments."""
    num_local: int = option(REQUIRED, "processes on this node (the same on every node)", "N", flag="-n", least=1, is_keyword=False)
    engine: str | None = option(
        None, "how the processes communicate: auto (default), single, shm, gloo or nccl (mpi is for mpirun)", "E", choices=ENGINES
    )
    allreduce: str | None = option(
        None,
        "algorithm of the all-reduce: auto (default), ring, recursive_doubling, rabenseifner, node_aware, engine (its own)",
        "A",
        choices=ALLREDUCES,
    )
    time_limit_s: float | None = option(
        None, "how long a collective call waits for a missing rank, in seconds (default 600)", "S", above=0, unit="seconds"
    )
    """`engine`, `allreduce` and `time_limit_s` are options of the communicator; None leaves them to the environment."""
    num_nodes: int = option(1, "hosts on which this command is started", "K", flag="--nodes", least=1)
    node_rank: int = option(0, "number of this host, 0..K-1; rank 0 runs on node 0", "I")
    rendezvous: str | None = option(None, "address of node 0 and a free port there; the same on all nodes", "HOST:PORT")
    job: str | None = option(
        None, "name of the job, shown in messages; the same on all nodes (default: the program's name)", "NAME"
    )
    """Name of the job; on several nodes it also separates two jobs with the same rendezvous."""
    log_dir: Path | None = option(None, "also write the output of each rank to DIR/rank-N.log", "DIR", convert=Path)
    on_failure: str = option(
        "end",
        "what happens when a rank fails: end (default): all ranks are ended; continue: the others continue; restart: all ranks are "
        "restarted; elastic: the others continue, and rank 0 is restarted if it was killed",
        "POLICY",
        choices=FAILURE_POLICIES,
    )
    restarts: int | None = option(None, f"with --on-failure restart: at most R restarts (default {DEFAULT_RESTARTS})", "R", least=1)
    threads: int | None = option(None, "threads of each process (default: available CPUs / N, at least 1)", "T", least=1)
    portable: str | None = None
    """Level at which the ranks cap their instruction set (`machine/instruction_set.py`); None leaves it to the environment."""
    bind: str = option("cpus", "cpus: bind each process to its share of the CPUs; none: do not bind", "HOW", choices=BINDINGS)
    """Whether each process is bound to its share of the CPUs, where there are enough for all of them and for `threads`."""
    output_from: str = "all"
    """"all": every line has its rank in front. "first": standard output is that of rank 0 only, without prefix and, on a
    terminal, byte by byte, so that it may draw a progress bar (`cluster/terminal.py`); others go to standard error, with their
    rank."""
    gpus: str = "one"
    """"one": each rank sees one GPU of the node, in turns; "all": it sees all of them and chooses by itself."""
    rank_variables: tuple[Mapping[str, str], ...] = ()
    """Further variables for each rank of this node; empty: none."""
    num_on_nodes: tuple[int, ...] = option((), "", "L", flag="--on-nodes", convert=_counts)
    """Processes on each node where they are not as many everywhere; empty: `num_local` on each."""
    timestamps: bool = option(False, "begin every line with the time")
    control_stdin: bool = option(False, "")
    """Whether standard input brings control messages: names of signals, and with several nodes first the secret of the job. Its end
    ends all ranks (`launch/control_messages.py`)."""

    def __post_init__(self) -> None:
        check(self)
        if self.output_from not in OUTPUT_FROM:
            raise UsageError(f"output_from must be one of {', '.join(OUTPUT_FROM)}; received {self.output_from!r}")
        if self.gpus not in GPU_POLICIES:
            raise UsageError(f"gpus must be one of {', '.join(GPU_POLICIES)}; received {self.gpus!r}")
        self._check_nodes()
        self._check_restarts()

    def _check_nodes(self) -> None:
        """Raises `UsageError` for a node rank, a rendezvous or counts of ranks that do not suit the number of nodes."""
        if not 0 <= self.node_rank < self.num_nodes:
            raise UsageError(
                f"--node-rank must lie in 0..{self.num_nodes - 1} with --nodes {self.num_nodes}; received {self.node_rank}"
            )
        if self.rendezvous is not None:
            host_port(self.rendezvous, "--rendezvous")
        elif self.num_nodes > 1:
            raise UsageError(
                f"--nodes {self.num_nodes} needs --rendezvous host:port, the same on all nodes: a name of the first node that "
                "the others resolve, and a port that is free there, e.g. --rendezvous node01:29400"
            )
        counts = self.num_on_nodes
        if counts and (len(counts) != self.num_nodes or min(counts) < 1 or counts[self.node_rank] != self.num_local):
            raise UsageError(
                f"--on-nodes {','.join(map(str, counts))} must have {self.num_nodes} numbers (--nodes), and number "
                f"{self.node_rank} (--node-rank) must be {self.num_local} (-n)"
            )

    def _check_restarts(self) -> None:
        """Raises `UsageError` for --restarts without --on-failure restart, and for restarts on several nodes."""
        if self.restarts is not None and self.on_failure != "restart":
            raise UsageError(
                f"--restarts {self.restarts} has no effect without --on-failure restart; add it, or leave --restarts out"
            )
        if self.on_failure == "restart" and self.num_nodes > 1:
            raise UsageError(
                "--on-failure restart works on one node only, as a launcher cannot end the ranks of other nodes; "
                "with --nodes, let the scheduler restart the job (sbatch --requeue)"
            )

    @property
    def max_restarts(self) -> int:
        """Maximum number of restarts of all ranks."""
        return 0 if self.on_failure != "restart" else DEFAULT_RESTARTS if self.restarts is None else self.restarts


def launch(config: LaunchConfig) -> int:
    """Local, blocking: runs all ranks of this node to their end; returns the exit code of the first that failed, or 0; 141 if the
    reader of our output left.

    Only from the main thread. No process of the ranks is left when it returns, nor when it is killed; a process that another thread
    starts meanwhile in a new session is taken for one of them. Raises `UsageError` before anything starts.
    """
    base = dict(os.environ)
    check_launch_options(config, base)
    arguments = command(config.program)
    secret = secret_from_stdin() if config.control_stdin and config.num_nodes > 1 else ""
    if config.num_nodes == 1:
        refuse_inside_launched_process(base, config.num_local)
    first = sum(config.num_on_nodes[: config.node_rank]) if config.num_on_nodes else config.node_rank * config.num_local
    logs = _make_logs(config.log_dir, range(first, first + config.num_local))
    _fill_standard_descriptors()
    with selectors.DefaultSelector() as selector, SignalInbox(selector) as inbox, OrphanGuard(base) as orphan_guard:
        colour = not base.get("NO_COLOR") and base.get("TERM") != "dumb"
        reports = config.control_stdin and config.num_nodes > 1
        console = LauncherOutput(selector, colour, logs is not None, config.job, config.output_from, config.timestamps, reports)
        if config.control_stdin:
            ControlInput(selector, inbox, lambda: console.report(SIGNAL_RECEIVED))
        attempts = _Attempts(config, base, arguments, logs, selector, inbox, orphan_guard, console, time(), secret)
        restart = 0
        while True:
            outcome = attempts.run_attempt(restart)
            if outcome.code in FINAL_CODES or outcome.stopped or restart == config.max_restarts:
                break
            restart += 1
            console.say(f"restarting all ranks (restart {restart} of {config.max_restarts})")
        flush_output(selector, inbox, console)
    return outcome.code or exit_code_of_lost_output(console.failure)


@dataclass(frozen=True)
class _Attempts:
    """Runs attempts of the ranks; holds what all attempts have in common."""

    config: LaunchConfig
    base: Mapping[str, str]
    arguments: Sequence[str]
    logs: LogFolder | None
    selector: selectors.BaseSelector
    inbox: SignalInbox
    orphan_guard: OrphanGuard
    console: LauncherOutput
    began_unix_s: float
    secret: str
    """Secret of the job, where another program started this launcher; empty otherwise."""

    def run_attempt(self, restart: int) -> Outcome:
        """Local, blocking: starts all ranks, waits for their end and returns how they ended; `restart` is the number of attempts
        before.
        """
        ranks: list[RankProcess] = []
        placement = _placement_of(self.config, self.base, restart, self.began_unix_s, self.secret)
        world = World(
            ranks,
            self.selector,
            self.inbox,
            self.orphan_guard,
            self.console,
            self.config.on_failure,
            lambda: self._start_rank(placement, 0),
        )
        try:
            for name, value in {**placement.names, "UNISONO_NODE_RANK": str(placement.node_rank)}.items():
                self.orphan_guard.mark_variable(name, value)
            self._start_ranks(ranks, placement)
            return world.run()
        except BaseException:
            world.kill()
            world.run()
            raise
        finally:
            self.orphan_guard.forget_groups()

    def _start_ranks(self, ranks: list[RankProcess], placement: Placement) -> None:
        """Starts all ranks of this node and appends each to `ranks`, so that the caller can end them if one fails to start."""
        for local_rank in range(placement.num_local):
            ranks.append(self._start_rank(placement, local_rank))

    def _start_rank(self, placement: Placement, local_rank: int) -> RankProcess:
        """Starts one rank with its environment, CPUs and log, and returns it; raises `UsageError` if the program cannot start."""
        rank = placement.first_rank + local_rank
        # A terminal is not passed on: the ranks are not in its foreground and could not read from it.
        stdin = None if rank == 0 and not os.isatty(0) and not self.config.control_stdin else subprocess.DEVNULL
        env = rank_environment(self.base, placement, local_rank)
        try:
            log = None if self.logs is None else self.logs.open(rank)
            with self.inbox.blocked() as mask:
                prepare = preexec_of_rank(mask, self._cpus_to_bind(placement, local_rank))
                process, out, err = start_process(self.arguments, env, stdin, prepare)
        except OSError as error:
            raise UsageError(
                f"rank {rank} cannot be started ({self.arguments[0]}): {error.strerror}; "
                "check the program, and with a large -n the limits on processes and open files (ulimit -u, ulimit -n)"
            ) from error
        self.orphan_guard.add_group(process.pid)
        return RankProcess(rank, process, self.console.attach(rank, out, err, log))

    def _cpus_to_bind(self, placement: Placement, local_rank: int) -> frozenset[int] | None:
        """Returns the CPUs that a rank is bound to; None where it is not bound."""
        mine = affinity.cpu_share(local_rank, placement.num_local)
        binds = self.config.bind == "cpus" and placement.num_local > 1 and hasattr(os, "sched_setaffinity")
        return mine if binds and mine is not None and placement.threads <= len(mine) else None


def _placement_of(config: LaunchConfig, base: Mapping[str, str], restart: int, began_unix_s: float, secret: str) -> Placement:
    """Returns what the ranks of one attempt are told: their counts, rendezvous, secret, threads, GPUs and options."""
    job = config.job or Path(config.program[1 if config.program[0] == "-m" else 0]).name
    if config.num_nodes > 1:
        assert config.rendezvous is not None
        # All launchers compute the same name. Without the counts: ranks that disagree shall meet and report it.
        name = job_token("unisono run", config.rendezvous, config.job or "")
        token = secret or base.get("UNISONO_TOKEN", "")
    else:
        token = secrets.token_hex(16)  # new for each attempt: processes left by an earlier one cannot join
        name = job_token(token)
    return Placement(
        num_local=config.num_local,
        num_nodes=config.num_nodes,
        node_rank=config.node_rank,
        rendezvous=config.rendezvous or f"127.0.0.1:{derived_port(name)}",
        name=name,
        token=token,
        job=job,
        restart=restart,
        began_unix_s=began_unix_s,
        threads=config.threads or affinity.threads_per_worker(config.num_local),
        threads_given=config.threads is not None,
        gpus=gpus.available_gpus(base) if config.gpus == "one" else (),
        launch_options=launch_options(config),
        num_on_nodes=config.num_on_nodes,
        variables=config.rank_variables,
        terminal=f"{columns}:{os.getpid()}" if config.output_from == "first" and (columns := columns_of(1)) else "",
    )


def _make_logs(folder: Path | None, ranks: range) -> LogFolder | None:
    """Makes the folder of the ranks' log files and returns it; None without --log-dir. Raises `UsageError` if it cannot."""
    if folder is None:
        return None
    try:
        return LogFolder.make(folder, ranks)
    except OSError as error:
        raise UsageError(
            f"logs cannot be written to {folder} (--log-dir): {error.strerror} ({error.filename}); choose another folder"
        ) from error


def _fill_standard_descriptors() -> None:
    """Opens the standard descriptors that are closed, so that none of our pipes gets the number of one."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        continue
    os.close(fd)
