"""The flags of `horovodrun`: what each does here. One table for the parser, the help, the file of settings and the handbook."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unisono.horovod._impl.job.init_messages import LEVELS

TEXT, WHOLE, NUMBER, SWITCH, PAIR = "text", "whole", "number", "switch", "pair"
THROUGH_HOST = "tensors of GPUs pass through the host here"
ELASTIC = ("min_num_proc", "max_num_proc", "host_discovery_script")
"""Each of these makes the job an elastic one."""
OWN_CHOICE = "the all-reduce is chosen by message and nodes; force one with UNISONO_ALLREDUCE=node_aware"

NO_SEARCH = "nothing is searched for while the program trains; set --fusion-threshold-mb and --cycle-time-ms"


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
                "processes in all (default: the slots of the hosts, or the tasks of the SLURM job)",
                WHOLE,
                "N",
            ),
            Flag(("-cb", "--check-build"), "say what is installed here, and end", SWITCH),
            Flag(("-v", "--version"), "print the version of Horovod's interface that is offered, and end", SWITCH),
            Flag(("--verbose",), "say what is started, and how", SWITCH),
            Flag(("--output-filename",), "also write the lines of each rank to DIR/rank-N.log", TEXT, "DIR"),
            Flag(
                ("--start-timeout",),
                "how long the ranks wait for each other to come (default 600, or HOROVOD_START_TIMEOUT)",
                WHOLE,
                "S",
                default="HOROVOD_START_TIMEOUT",
            ),
            Flag(("--config-file",), "file of settings (YAML, as for horovodrun); the command line outweighs it", TEXT, "FILE"),
            Flag(
                ("--network-interfaces", "--network-interface"),
                "no effect: the ranks meet at the address of the first host",
                TEXT,
                "NAMES",
                no_effect="the ranks meet at the address of the first host and use its interface; for another one set "
                "UNISONO_RENDEZVOUS=address:port",
            ),
            Flag(("--disable-cache",), "accepted: hosts are never remembered from one start to the next", SWITCH),
        ),
    ),
    (
        "hosts",
        (
            Flag(("-H", "--hosts"), "host:slots,host:slots (default: this machine, or the nodes of the SLURM job)", TEXT, "LIST"),
            Flag(("-hostfile", "--hostfile"), "file with a line `host slots=N` for each host", TEXT, "FILE"),
            Flag(
                ("--host-discovery-script",), "elastic: a program that prints host:slots lines, asked again and again", TEXT, "FILE"
            ),
            Flag(("-p", "--ssh-port"), "port of ssh on other hosts", WHOLE, "PORT"),
            Flag(("-i", "--ssh-identity-file"), "private key for ssh to other hosts", TEXT, "FILE"),
        ),
    ),
    (
        "how they talk",
        (
            Flag(
                ("--gloo",), "accepted: without MPI, as always unless --mpi is given (within a node through shared memory)", SWITCH
            ),
            Flag(("--mpi",), "start with mpirun, and let MPI carry the tensors", SWITCH),
            Flag(("--jsrun",), "refused: write `jsrun ... unisono run --horovod program`", SWITCH),
            Flag(("--mpi-args",), "with --mpi: further words for mpirun", TEXT, "WORDS"),
            Flag(("--binding-args",), "with --mpi: words for mpirun that bind processes to CPUs", TEXT, "WORDS"),
            Flag(("--tcp",), "with --mpi: no InfiniBand (Open MPI: --mca pml ob1 --mca btl ^openib)", SWITCH),
            Flag(
                ("--mpi-threads-disable",),
                "no effect: MPI is called by one thread at a time",
                SWITCH,
                off=("--no-mpi-threads-disable",),
                setting="library_options.mpi_threads_disable",
                no_effect="MPI is never called by two threads at once",
            ),
        ),
    ),
    (
        "negotiation and fusion",
        (
            Flag(
                ("--fusion-threshold-mb",),
                "put tensors together up to so many MiB (default 128; 0: never)",
                NUMBER,
                "MB",
                variable="HOROVOD_FUSION_THRESHOLD",
                setting="params.fusion_threshold_mb",
            ),
            Flag(
                ("--cycle-time-ms",),
                "how long a tensor that nobody waits for stays alone (default 1)",
                NUMBER,
                "MS",
                variable="HOROVOD_CYCLE_TIME",
                setting="params.cycle_time_ms",
            ),
            Flag(
                ("--cache-capacity",),
                "how many agreements are remembered (default 1024; 0: none)",
                WHOLE,
                "N",
                variable="HOROVOD_CACHE_CAPACITY",
                setting="params.cache_capacity",
            ),
            *(
                Flag(
                    (f"--{name}",),
                    "no effect: chosen by message and nodes (UNISONO_ALLREDUCE)",
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
                "no effect: an operation waits as long as its peers live",
                WHOLE,
                "S",
                setting="library_options.gloo_timeout_seconds",
                no_effect="an operation waits as long as its peers live; set a limit with --stall-check-shutdown-time-seconds",
            ),
        ),
    ),
    (
        "autotune",
        (
            Flag(
                ("--autotune",),
                "no effect: nothing is searched for",
                SWITCH,
                off=("--no-autotune",),
                setting="autotune.enabled",
                no_effect=NO_SEARCH,
            ),
            *(
                Flag(
                    (f"--autotune-{name}",),
                    "no effect: as --autotune",
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
            Flag(("--min-np", "--min-num-proc"), "fewest processes to go on with", WHOLE, "N"),
            Flag(("--max-np", "--max-num-proc"), "most processes to use", WHOLE, "N"),
            Flag(
                ("--slots-per-host",),
                "processes on a host for which the discovery script gives no number",
                WHOLE,
                "N",
                needs=("host_discovery_script",),
            ),
            Flag(
                ("--elastic-timeout",),
                "how long to wait for enough slots, and for workers that are stuck (default 600, or HOROVOD_ELASTIC_TIMEOUT)",
                WHOLE,
                "S",
                default="HOROVOD_ELASTIC_TIMEOUT",
                needs=ELASTIC,
            ),
            Flag(("--reset-limit",), "how often the job may change its size before it ends", WHOLE, "N", needs=ELASTIC),
            Flag(
                ("--blacklist-cooldown-range",),
                "seconds, least and most, after which a host that failed is tried again",
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
                "write a timeline of all operations (chrome://tracing)",
                TEXT,
                "FILE",
                variable="HOROVOD_TIMELINE",
                setting="timeline.filename",
            ),
            Flag(
                ("--timeline-mark-cycles",),
                "mark the rounds of the negotiation in it",
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
                "do not look for ranks that wait for others",
                SWITCH,
                off=("--stall-check",),
                variable="HOROVOD_STALL_CHECK_DISABLE",
                setting="!stall_check.enabled",
            ),
            Flag(
                ("--stall-check-warning-time-seconds",),
                "report after so long (default 60)",
                WHOLE,
                "S",
                variable="HOROVOD_STALL_CHECK_TIME_SECONDS",
                setting="stall_check.warning_time_seconds",
            ),
            Flag(
                ("--stall-check-shutdown-time-seconds",),
                "end the communication after so long (default 0: never)",
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
                f"least level to log: {', '.join(LEVELS)} (default WARNING)",
                TEXT,
                "LEVEL",
                variable="HOROVOD_LOG_LEVEL",
                setting="logging.level",
                choices=LEVELS,
            ),
            Flag(
                ("--log-without-timestamp", "--log-hide-timestamp"),
                "no time in the lines of the log",
                SWITCH,
                off=("--log-with-timestamp", "--no-log-hide-timestamp"),
                variable="HOROVOD_LOG_HIDE_TIME",
                setting="!logging.with_timestamp",
            ),
            Flag(("-prefix-timestamp", "--prefix-output-with-timestamp"), "the time in front of every line of the ranks", SWITCH),
        ),
    ),
)

FLAGS: tuple[Flag, ...] = tuple(flag for _, flags in GROUPS for flag in flags)


def rows() -> list[tuple[str, str, str]]:
    """Returns the table for the documentation: flag, effect here, variable. Pure."""
    return [(" ".join((*flag.names, *flag.off)), flag.does, flag.variable or "") for flag in FLAGS]
