"""The environment that `unisono run` gives to a rank: pure functions of values and of the launcher's own environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unisono.cluster import terminal
from unisono.cluster.resolve import verdicts
from unisono.cluster.topology import Topology
from unisono.errors import UsageError

NOT_INHERITED = "UNISONO_PRIVATE"
"""Variable with the names, separated by spaces, of variables that are meant for one process alone: ranks that it starts do not
inherit them."""
HASH_SEED: Mapping[str, str] = {"PYTHONHASHSEED": "0"}
"""For every Python that we start, unless the user has chosen another: so that sets of strings have one order on all ranks."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True)
class Placement:
    """Values that all ranks of a node have in common."""

    num_local: int
    num_nodes: int
    node_rank: int
    rendezvous: str
    name: str
    """Public name of the job."""
    token: str
    """Secret of the job; empty: the ranks derive one from the user's key (`cluster/job_secret.py`)."""
    job: str
    restart: int
    threads: int
    threads_given: bool
    """Whether the user gave the number of threads; otherwise thread variables that are already set are kept."""
    gpus: tuple[str, ...]
    """GPUs of which each rank sees one, in turn; empty: each sees those of the launcher."""
    launch_options: tuple[tuple[str, str], ...]
    """Variables for the options of the communicator that were given; the others are inherited."""
    began_unix_s: float = 0.0
    """Time at which the launcher began; a restart does not change it."""
    terminal: str = ""
    """Terminal variable of rank 0, if its output goes to a terminal byte by byte (`cluster/terminal.py`); empty otherwise."""
    num_on_nodes: tuple[int, ...] = ()
    """Number of ranks on each node, where they differ; empty: `num_local` on each."""
    variables: tuple[Mapping[str, str], ...] = ()
    """Further variables for each rank of this node; empty: none."""

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of ranks on each node."""
        return self.num_on_nodes or (self.num_local,) * self.num_nodes

    @property
    def names(self) -> dict[str, str]:
        """The variables of name and secret of the job."""
        return {"UNISONO_LAUNCH": self.name} | ({"UNISONO_TOKEN": self.token} if self.token else {})

    @property
    def first_rank(self) -> int:
        """Rank of the first process on this node."""
        return sum(self.counts[: self.node_rank])


def rank_environment(base: Mapping[str, str], placement: Placement, local_rank: int) -> dict[str, str]:
    """Returns `base` with this rank's position in the job, its threads and its GPU."""
    env = {**HASH_SEED, **inherited(base)}
    env.pop("UNISONO_TOKEN", None)
    env.update(
        UNISONO_RANK=str(placement.first_rank + local_rank),
        UNISONO_WORLD_SIZE=str(sum(placement.counts)),
        UNISONO_LOCAL_RANK=str(local_rank),
        UNISONO_LOCAL_SIZE=str(placement.num_local),
        UNISONO_NODE_RANK=str(placement.node_rank),
        UNISONO_NUM_NODES=str(placement.num_nodes),
        UNISONO_RENDEZVOUS=placement.rendezvous,
        **placement.names,
        UNISONO_JOB=placement.job,
        UNISONO_RESTART=str(placement.restart),
        UNISONO_BEGAN=repr(placement.began_unix_s),
        PYTHONUNBUFFERED="1",
    )
    env.update(placement.launch_options)
    env.pop(terminal.VARIABLE, None)
    if placement.terminal and not placement.node_rank and not local_rank:
        env[terminal.VARIABLE] = placement.terminal
    for name in THREAD_VARIABLES:
        if placement.threads_given or not base.get(name):
            env[name] = str(placement.threads)
    if placement.gpus:
        env["CUDA_VISIBLE_DEVICES"] = placement.gpus[local_rank % len(placement.gpus)]
    if placement.variables:
        env.update(placement.variables[local_rank])
    return env


def inherited(env: Mapping[str, str]) -> dict[str, str]:
    """Pure: returns the variables that the ranks of a new job inherit from the process that starts it."""
    private = (NOT_INHERITED, *env.get(NOT_INHERITED, "").split())
    return {name: value for name, value in env.items() if name not in private}


LEAVE_OUT_RUN = "leave out `unisono run` and let that launcher start the program"


def refuse_inside_launched_process(env: Mapping[str, str], num_local: int, remedy: str = LEAVE_OUT_RUN) -> None:
    """Refuses to start ranks inside one of several processes of another launcher, as each would start its own. A rank of `unisono
    run` may start ranks: it does so on purpose; variables that it inherited from outer launchers do not count.
    """
    outer = next((answer for _, answer in verdicts(env) if isinstance(answer, Topology)), None)
    if outer is not None and outer.launcher not in ("unisono", "local") and outer.world_size > 1:
        raise UsageError(
            f"this is process {outer.global_rank} of {outer.world_size} according to {outer.launcher} (environment), so "
            f"unisono run -n {num_local} here would start {outer.world_size} x {num_local} processes; {remedy}, "
            "or start unisono run once for each node with --nodes and --node-rank"
        )
