"""The inputs of an elastic worker: the address of the driver from its environment, and its ranks from the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from unisono.cluster.rendezvous import derived_port, host_port
from unisono.cluster.resolve import environment
from unisono.cluster.topology import ALLREDUCES, ENGINES, Topology
from unisono.cluster.variables import one_of, positive_seconds, require, whole_number
from unisono.errors import UsageError
from unisono.launch.rank_env import NOT_INHERITED

DRIVER, SECRET, WORKER = "UNISONO_ELASTIC_DRIVER", "UNISONO_ELASTIC_SECRET", "UNISONO_ELASTIC_WORKER"
ELASTIC = (DRIVER, SECRET, WORKER, "HOROVOD_ELASTIC", NOT_INHERITED)
"""The variables by which a worker knows its driver. A job that the worker starts itself must not inherit them."""
NOTHING, REMOVED, ADDED = 0, 1, 2
"""What became of the hosts, as the driver tells workers; both may be said at once (3)."""
MEETING_LIMIT_S = 120.0
"""How long a new generation may take to meet. All of its members have just asked for it, so none is far."""
PLACE = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_SIZE",
    "NODE_RANK",
    "NUM_NODES",
    "RENDEZVOUS",
    "LAUNCH",
    "TOKEN",
    "JOB",
    "RESTART",
)


@dataclass(frozen=True)
class DriverAddress:
    """The address of the driver, and the number of this worker."""

    address: str
    port: int
    secret: str
    worker: int


@dataclass(frozen=True)
class RankAssignment:
    """The ranks of one worker in one generation. Plain values, as it is sent over the network."""

    generation: int
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    node_rank: int
    num_nodes: int
    address: str
    """Of rank 0."""
    token: str

    def plain(self) -> dict[str, Any]:
        """Returns the fields as a dict. Pure."""
        return asdict(self)


def assignment_from_plain(plain: Mapping[str, Any]) -> RankAssignment:
    """Returns the assignment that `plain` has described. Pure."""
    return RankAssignment(**{field.name: plain[field.name] for field in fields(RankAssignment)})


def driver_address() -> DriverAddress | None:
    """Returns the driver's address from the environment; None in a process that no driver has started. Local."""
    return address_of(environment())


def address_of(env: Mapping[str, str]) -> DriverAddress | None:
    """Returns the driver's address from these variables; None where there is none. Pure."""
    if not env.get(DRIVER):
        if env.get("HOROVOD_ELASTIC") == "1":
            raise UsageError(
                f"HOROVOD_ELASTIC is 1, but {DRIVER} is not set (environment), so this worker has no driver; start it with "
                "`unisono horovodrun --min-np ... -np ...`, or unset HOROVOD_ELASTIC"
            )
        return None
    require(env, (DRIVER, SECRET, WORKER), "unisono horovodrun", "start with unisono horovodrun, or unset them all")
    address, port = host_port(env[DRIVER], DRIVER)
    return DriverAddress(address, port, env[SECRET], whole_number(env, WORKER))


def topology_of(assignment: RankAssignment) -> Topology:
    """Returns the topology of an assignment, with the options for the communicator from the environment. Local."""
    env = environment()
    return Topology(
        launcher="horovodrun",
        global_rank=assignment.rank,
        world_size=assignment.size,
        local_rank=assignment.local_rank,
        local_size=assignment.local_size,
        node_rank=assignment.node_rank,
        num_nodes=assignment.num_nodes,
        address=assignment.address,
        port=derived_port(assignment.token),
        token=assignment.token,
        secret=assignment.token,
        job=f"generation {assignment.generation}",
        engine=one_of(env, "UNISONO_ENGINE", ENGINES) or "auto",
        allreduce=one_of(env, "UNISONO_ALLREDUCE", ALLREDUCES) or "auto",
        time_limit_s=positive_seconds(env, "UNISONO_TIME_LIMIT_S") if env.get("UNISONO_TIME_LIMIT_S") else MEETING_LIMIT_S,
    )


def worker_environment(
    base: Mapping[str, str], driver: DriverAddress, host: str, slot: int, num_first: int, slots: Mapping[str, int]
) -> dict[str, str]:
    """Returns the environment of a worker: `base` with the ranks that it will have if nothing happens before the first generation
    and all slots are used (`slots`: how many each host has). Pure."""
    like = [name for name, count in slots.items() if count > slot or name == host]
    env = {name: value for name, value in base.items() if name not in {f"UNISONO_{part}" for part in PLACE}}
    env.update(
        {
            DRIVER: f"[{driver.address}]:{driver.port}" if ":" in driver.address else f"{driver.address}:{driver.port}",
            SECRET: driver.secret,
            WORKER: str(driver.worker),
            "HOROVOD_ELASTIC": "1",
            NOT_INHERITED: " ".join(ELASTIC),
            "HOROVOD_HOSTNAME": host,
            "HOROVOD_RANK": str(driver.worker),
            "HOROVOD_SIZE": str(max(num_first, driver.worker + 1)),
            "HOROVOD_LOCAL_RANK": str(slot),
            "HOROVOD_LOCAL_SIZE": str(max(slots.get(host, 0), slot + 1)),
            "HOROVOD_CROSS_RANK": str(like.index(host)),
            "HOROVOD_CROSS_SIZE": str(len(like)),
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "PYTHONUNBUFFERED": "1",
        }
    )
    return env
