"""The flags of `horovodrun`: what each does here. One table for the parser, the help, the file of settings and the handbook."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unisono.horovod._impl.job.init_messages import LEVELS

TEXT, WHOLE, NUMBER, SWITCH, PAIR = "text", "whole", "number", "switch", "pair"
THROUGH_HOST = "GPU tensors pass through the host"
ELASTIC = ("min_num_proc", "max_num_proc", "host_discovery_script")
"""Each of these makes the job an elastic one."""
OWN_CHOICE = "the all-reduce is chosen by message size and number of nodes; force one with UNISONO_ALLREDUCE=node_aware"

NO_SEARCH = "there is no autotuning; set --fusion-threshold-mb and --cycle-time-ms"


@dataclass(frozen=True)
class Flag:
    """One flag with its other spellings, its meaning here and its variable."""

    names: tuple[str, ...]
    does: str
    """What it does here."""
    kind: str = TEXT
    metavar: str = "X"
    off: tuple[str, ...] = ()
    """Spellings that switch it off."""
    variable: str | None = None
    """The HOROVOD_* variable that the ranks get."""
    setting: str | None = None
    """Its place in the file of settings, section.key; a "!" in front: the file says the contrary."""
    choices: tuple[str, ...] = ()
    no_effect: str | None = None
    """Why it changes nothing here; said when it is used."""
    default: str | None = None
    """The HOROVOD_* variable of this process that holds where the flag is not given."""
    needs: tuple[str, ...] = ()
    """The `dest` of flags without which it changes nothing; one of them is enough."""

    @property
    def dest(self) -> str:
        """Name of the flag's value: that of the longest spelling, with underscores."""
        return max(self.names, key=len).lstrip("-").replace("-", "_")


GROUPS: Sequence[tuple[str, tuple[Flag, ...]]] = (
    (
        "general",
        (
            Flag(
                ("-np", "--num-proc"),
                "number of processes (default: the slots of the hosts, or the tasks of the SLURM job)",
                WHOLE,
                "N",
            ),
            Flag(("-cb", "--check-build"), "show which frameworks and engines are installed, and exit", SWITCH),
            Flag(("-v", "--version"), "print the version of Horovod's interface that is offered, and exit", SWITCH),
            Flag(("--verbose",), "print what is started, and how", SWITCH),
            Flag(("--output-filename",), "also write the output of each rank to DIR/rank-N.log", TEXT, "DIR"),
            Flag(
                ("--start-timeout",),
                "seconds to wait until all ranks have started (default 600, or HOROVOD_START_TIMEOUT)",
                WHOLE,
                "S",
                default="HOROVOD_START_TIMEOUT",
            ),
            Flag(("--config-file",), "file of settings (YAML, as for horovodrun); the command line takes precedence", TEXT, "FILE"),
            Flag(
                ("--network-interfaces", "--network-interface"),
                "no effect: the ranks connect at the address of the first host",
                TEXT,
                "NAMES",
                no_effect="the ranks connect at the address of the first host; for another address set "
                "UNISONO_RENDEZVOUS=address:port",
            ),
            Flag(("--disable-cache",), "accepted, without effect: nothing about the hosts is cached between starts", SWITCH),
        ),
    ),
    (
        "hosts",
        (
            Flag(
                ("-H", "--hosts"),
                "hosts and slots: host:slots,host:slots (default: this machine, or the nodes of the SLURM job)",
                TEXT,
                "LIST",
            ),
            Flag(("-hostfile", "--hostfile"), "file with a line `host slots=N` for each host", TEXT, "FILE"),
            Flag(
                ("--host-discovery-script",),
                "elastic: a program that prints host:slots lines; it is called again and again",
                TEXT,
                "FILE",
            ),
            Flag(("-p", "--ssh-port"), "port of ssh on other hosts", WHOLE, "PORT"),
            Flag(("-i", "--ssh-identity-file"), "private key for ssh to other hosts", TEXT, "FILE"),
        ),
    ),
    (
        "communication",
        (
            Flag(
                ("--gloo",), "accepted: communicate without MPI, which is the default (within a node through shared memory)", SWITCH
            ),
            Flag(("--mpi",), "start with mpirun and communicate through MPI", SWITCH),
            Flag(("--jsrun",), "not offered: write `jsrun ... unisono run --horovod program`", SWITCH),
            Flag(("--mpi-args",), "with --mpi: further arguments for mpirun", TEXT, "WORDS"),
            Flag(("--binding-args",), "with --mpi: arguments for mpirun that bind processes to CPUs", TEXT, "WORDS"),
            Flag(("--tcp",), "with --mpi: TCP, no InfiniBand (Open MPI: --mca pml ob1 --mca btl ^openib)", SWITCH),
            Flag(
                ("--mpi-threads-disable",),
                "no effect: only one thread at a time calls MPI",
                SWITCH,
                off=("--no-mpi-threads-disable",),
                setting="library_options.mpi_threads_disable",
                no_effect="only one thread at a time calls MPI",
            ),
        ),
    ),
    (
        "negotiation and fusion",
        (
            Flag(
                ("--fusion-threshold-mb",),
                "fuse tensors into operations of up to this many MiB (default 128; 0: no fusion)",
                NUMBER,
                "MB",
                variable="HOROVOD_FUSION_THRESHOLD",
                setting="params.fusion_threshold_mb",
            ),
            Flag(
                ("--cycle-time-ms",),
                "milliseconds that a tensor waits for others to be fused with (default 1)",
                NUMBER,
                "MS",
                variable="HOROVOD_CYCLE_TIME",
                setting="params.cycle_time_ms",
            ),
            Flag(
                ("--cache-capacity",),
                "number of negotiated operations to cache (default 1024; 0: none)",
                WHOLE,
                "N",
                variable="HOROVOD_CACHE_CAPACITY",
                setting="params.cache_capacity",
            ),
            *(
                Flag(
                    (f"--{name}",),
                    "no effect: the all-reduce is chosen by message size and number of nodes (UNISONO_ALLREDUCE)",
                    SWITCH,
                    off=(f"--no-{name}",),
                    setting=f"params.{name.replace('-', '_')}",
                    no_effect=OWN_CHOICE,
                )
                for name in ("hierarchical-allreduce", "hierarchical-allgather", "torus-allreduce")
            ),
            Flag(
                ("--num-nccl-streams",),
                f"no effect: {THROUGH_HOST}",
                WHOLE,
                "N",
                setting="library_options.num_nccl_streams",
                no_effect=THROUGH_HOST,
            ),
            Flag(
                ("--thread-affinity",),
                "no effect: each rank keeps its share of the CPUs",
                WHOLE,
                "CPU",
                setting="library_options.thread_affinity",
                no_effect="each rank, with its background threads, keeps its share of the CPUs",
            ),
            Flag(
                ("--gloo-timeout-seconds",),
                "no effect: an operation waits as long as its peers are alive",
                WHOLE,
                "S",
                setting="library_options.gloo_timeout_seconds",
                no_effect="an operation waits as long as its peers are alive; set a limit with --stall-check-shutdown-time-seconds",
            ),
        ),
    ),
    (
        "autotune",
        (
            Flag(
                ("--autotune",),
                "no effect: there is no autotuning",
                SWITCH,
                off=("--no-autotune",),
                setting="autotune.enabled",
                no_effect=NO_SEARCH,
            ),
            *(
                Flag(
                    (f"--autotune-{name}",),
                    "no effect, like --autotune",
                    kind,
                    metavar,
                    setting=f"autotune.{name.replace('-', '_')}",
                    no_effect=NO_SEARCH,
                )
                for name, kind, metavar in (
                    ("log-file", TEXT, "FILE"),
                    ("warmup-samples", WHOLE, "N"),
                    ("steps-per-sample", WHOLE, "N"),
                    ("bayes-opt-max-samples", WHOLE, "N"),
                    ("gaussian-process-noise", NUMBER, "X"),
                )
            ),
        ),
    ),
    (
        "elastic",
        (
            Flag(
                ("--min-np", "--min-num-proc"),
                "smallest number of processes with which the job continues (default: -np)",
                WHOLE,
                "N",
            ),
            Flag(
                ("--max-np", "--max-num-proc"),
                "largest number of processes (default: -np, or all slots with a discovery script)",
                WHOLE,
                "N",
            ),
            Flag(
                ("--slots-per-host",),
                "slots of a host for which the discovery script prints no number (default 1)",
                WHOLE,
                "N",
                needs=("host_discovery_script",),
            ),
            Flag(
                ("--elastic-timeout",),
                "seconds to wait for enough slots, and for stuck workers (default 600, or HOROVOD_ELASTIC_TIMEOUT)",
                WHOLE,
                "S",
                default="HOROVOD_ELASTIC_TIMEOUT",
                needs=ELASTIC,
            ),
            Flag(
                ("--reset-limit",), "how often the job may be reset before it ends (default: no limit)", WHOLE, "N", needs=ELASTIC
            ),
            Flag(
                ("--blacklist-cooldown-range",),
                "least and most seconds for which a host with failing workers gets no new ones (default: for good)",
                PAIR,
                "S",
                needs=ELASTIC,
            ),
        ),
    ),
    (
        "timeline",
        (
            Flag(
                ("--timeline-filename",),
                "write a timeline of all operations to FILE (for chrome://tracing)",
                TEXT,
                "FILE",
                variable="HOROVOD_TIMELINE",
                setting="timeline.filename",
            ),
            Flag(
                ("--timeline-mark-cycles",),
                "mark the negotiation cycles in the timeline",
                SWITCH,
                off=("--no-timeline-mark-cycles",),
                variable="HOROVOD_TIMELINE_MARK_CYCLES",
                setting="timeline.mark_cycles",
                needs=("timeline_filename",),
            ),
        ),
    ),
    (
        "stalls",
        (
            Flag(
                ("--no-stall-check",),
                "do not check for ranks that wait for others",
                SWITCH,
                off=("--stall-check",),
                variable="HOROVOD_STALL_CHECK_DISABLE",
                setting="!stall_check.enabled",
            ),
            Flag(
                ("--stall-check-warning-time-seconds",),
                "report a stall after this many seconds (default 60)",
                WHOLE,
                "S",
                variable="HOROVOD_STALL_CHECK_TIME_SECONDS",
                setting="stall_check.warning_time_seconds",
            ),
            Flag(
                ("--stall-check-shutdown-time-seconds",),
                "end the communication after a stall of this many seconds (default 0: never)",
                WHOLE,
                "S",
                variable="HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
                setting="stall_check.shutdown_time_seconds",
            ),
        ),
    ),
    (
        "logging",
        (
            Flag(
                ("--log-level",),
                f"lowest level to log: {', '.join(LEVELS)} (default WARNING)",
                TEXT,
                "LEVEL",
                variable="HOROVOD_LOG_LEVEL",
                setting="logging.level",
                choices=LEVELS,
            ),
            Flag(
                ("--log-without-timestamp", "--log-hide-timestamp"),
                "log without timestamps",
                SWITCH,
                off=("--log-with-timestamp", "--no-log-hide-timestamp"),
                variable="HOROVOD_LOG_HIDE_TIME",
                setting="!logging.with_timestamp",
            ),
            Flag(
                ("-prefix-timestamp", "--prefix-output-with-timestamp"),
                "print the time in front of every output line of the ranks",
                SWITCH,
            ),
        ),
    ),
)

FLAGS: tuple[Flag, ...] = tuple(flag for _, flags in GROUPS for flag in flags)


def rows() -> list[tuple[str, str, str]]:
    """Returns the table for the documentation: flag, effect here, variable. Pure."""
    return [(" ".join((*flag.names, *flag.off)), flag.does, flag.variable or "") for flag in FLAGS]
