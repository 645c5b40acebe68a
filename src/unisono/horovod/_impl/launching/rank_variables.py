"""What the launcher of a program written for Horovod provides: the place that `import horovod` leads to, and HOROVOD_*
variables."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class HorovodStart:
    """What all ranks of a job share."""

    stand_in: Path
    """The folder whose package `horovod` leads to ours (`import_alias.py`)."""
    variables: tuple[tuple[str, str], ...] = ()
    """HOROVOD_* variables that options asked for."""


@dataclass(frozen=True)
class RankPosition:
    """The ranks and sizes of a process, in Horovod's words. `cross` is (rank, size) among the processes with this local rank; None:
    unknown."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross: tuple[int, int] | None


def position_on_node(counts: Sequence[int], node_rank: int, local_rank: int) -> RankPosition:
    """Returns the position of one rank of a node; `counts` are the processes of each node. Pure."""
    like_this = [node for node, count in enumerate(counts) if count > local_rank]
    cross = (like_this.index(node_rank), len(like_this))
    return RankPosition(sum(counts[:node_rank]) + local_rank, sum(counts), local_rank, counts[node_rank], cross)


def common_variables(base: Mapping[str, str], start: HorovodStart) -> dict[str, str]:
    """Returns the variables that are the same for every rank. Pure."""
    given = base.get("PYTHONPATH", "")
    search = [str(start.stand_in), *(given.split(os.pathsep) if given else ())]  # an empty one in it is the current folder
    controller = "mpi" if base.get("UNISONO_ENGINE") == "mpi" else "gloo"
    return {
        **dict(start.variables),
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(search)),
        "HOROVOD_CONTROLLER": controller,
        "HOROVOD_CPU_OPERATIONS": controller,
    }


def horovod_variables(base: Mapping[str, str], start: HorovodStart, at: RankPosition) -> dict[str, str]:
    """Returns the variables of one rank, to be added to `base`. Programs read them before `hvd.init()`. Local."""
    cross = {} if at.cross is None else {"HOROVOD_CROSS_RANK": str(at.cross[0]), "HOROVOD_CROSS_SIZE": str(at.cross[1])}
    return {
        **common_variables(base, start),
        "HOROVOD_RANK": str(at.rank),
        "HOROVOD_SIZE": str(at.size),
        "HOROVOD_LOCAL_RANK": str(at.local_rank),
        "HOROVOD_LOCAL_SIZE": str(at.local_size),
        **cross,
        "HOROVOD_HOSTNAME": socket.gethostname(),
    }
