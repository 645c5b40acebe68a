"""The environment that `unisono run` gives to a rank: pure functions of values and of the launcher's own environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unisono.cluster import terminal
from unisono.cluster.horovod_elastic import without_driver
from unisono.cluster.horovod_start import HorovodPlace, HorovodStart, horovod_variables
from unisono.cluster.resolve import verdicts
from unisono.cluster.topology import Topology
from unisono.errors import UsageError

BEGAN = "UNISONO_BEGAN"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True)
class Placement:
    """What all ranks of a node have in common."""

    num_local: int
    num_nodes: int
    node_rank: int
    rendezvous: str
    token: str
    job: str
    restart: int
    threads: int
    threads_asked: bool
    """Whether the user asked for that many threads; otherwise variables that are already set are kept."""
    gpus: tuple[str, ...]
    wishes: tuple[tuple[str, str], ...]
    """Variables for what the user asked of the communicator; what was not asked for is inherited."""
    began_unix_s: float = 0.0
    """When the launcher began; a restart changes nothing about it."""
    terminal: str = ""
    """For rank 0, if its words go to a terminal as they are (`cluster/terminal.py`)."""
    num_on_nodes: tuple[int, ...] = ()
    """Of each node, where they differ; empty: `num_local`."""
    horovod: HorovodStart | None = None
    """For programs written for Horovod."""

    @property
    def counts(self) -> tuple[int, ...]:
        return self.num_on_nodes or (self.num_local,) * self.num_nodes

    @property
    def first_rank(self) -> int:
        return sum(self.counts[: self.node_rank])


def rank_environment(base: Mapping[str, str], at: Placement, local_rank: int) -> dict[str, str]:
    """`base` with this rank's place in the job, its threads and its GPU."""
    env = without_driver(base)
    env.update(
        UNISONO_RANK=str(at.first_rank + local_rank),
        UNISONO_WORLD_SIZE=str(sum(at.counts)),
        UNISONO_LOCAL_RANK=str(local_rank),
        UNISONO_LOCAL_SIZE=str(at.num_local),
        UNISONO_NODE_RANK=str(at.node_rank),
        UNISONO_NUM_NODES=str(at.num_nodes),
        UNISONO_RENDEZVOUS=at.rendezvous,
        UNISONO_TOKEN=at.token,
        UNISONO_JOB=at.job,
        UNISONO_RESTART=str(at.restart),
        UNISONO_BEGAN=repr(at.began_unix_s),
        PYTHONUNBUFFERED="1",
    )
    env.update(at.wishes)
    env.pop(terminal.VARIABLE, None)
    if at.terminal and not at.node_rank and not local_rank:
        env[terminal.VARIABLE] = at.terminal
    for name in THREAD_VARIABLES:
        if at.threads_asked or not base.get(name):
            env[name] = str(at.threads)
    if at.horovod is not None:  # such programs choose their GPU themselves, by local rank, among all of the node
        env.update(horovod_variables(env, at.horovod, _place(at, local_rank)))
    elif at.gpus:
        env["CUDA_VISIBLE_DEVICES"] = at.gpus[local_rank % len(at.gpus)]
    return env


def _place(at: Placement, local_rank: int) -> HorovodPlace:
    like_this = [node for node, count in enumerate(at.counts) if count > local_rank]
    cross = (like_this.index(at.node_rank), len(like_this))
    return HorovodPlace(at.first_rank + local_rank, sum(at.counts), local_rank, at.num_local, cross)


def refuse_inside_a_rank(env: Mapping[str, str], num_local: int, for_horovod: bool = False) -> None:
    """Each of several processes of another launcher would start its own ranks; that is never meant on one node.

    A rank of ours may start ranks: it does so on purpose, and what it inherited from further outside says nothing.
    """
    outer = next((answer for _, answer in verdicts(env) if isinstance(answer, Topology)), None)
    if outer is not None and outer.launcher not in ("unisono", "local") and outer.world_size > 1:
        remedy = (
            "let that launcher start `unisono run --horovod program`, without -n"
            if for_horovod
            else "leave out `unisono run` and let that launcher start the program"
        )
        raise UsageError(
            f"this is process {outer.global_rank} of {outer.world_size} by the variables of {outer.launcher} (environment), so "
            f"unisono run -n {num_local} here would start {outer.world_size} x {num_local} processes; {remedy}, "
            "or start unisono run once for each node with --nodes and --node-rank"
        )
