"""The options of an elastic job."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from unisono.errors import UsageError


@dataclass(frozen=True)
class ElasticPlan:
    """The options of an elastic job. Refuses values that cannot work, and names the option of `unisono horovodrun`."""

    num_proc: int
    """How many workers to begin with. If they do not come in time, the job begins with fewer."""
    min_num_proc: int
    """With fewer the job waits for hosts, and ends if none come in time."""
    max_num_proc: int | None
    """Never more; None: as many as were asked for on fixed hosts, as many as there are slots with a discovery script."""
    hosts: tuple[tuple[str, int], ...]
    """Fixed hosts with their slots; not looked at with a discovery script."""
    discovery_script: str | None
    """Prints the hosts of the moment, one `host:slots` or `host` in a line."""
    slots_per_host: int | None
    """Of hosts that the script prints without a number; None: 1."""
    elastic_timeout_s: float
    """How long to wait for slots, and for members that do not come back."""
    reset_limit: int | None
    """How many generations may follow the first; None: any number."""
    cooldown_range: tuple[float, float] | None
    """How long a host on which workers fail gets no new ones, at least and at most; None: for good."""
    command: tuple[str, ...]
    """As it is executed (`launch/program.py`)."""
    env: Mapping[str, str]
    """Of the workers, and of the discovery script."""
    output_folder: str | None = None
    timestamps: bool = False
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    start_timeout_s: float | None = None
    """How long the first start may take, until those who are ready begin; None: `START_S`, or the other time-out if longer."""

    def __post_init__(self) -> None:
        if self.num_proc < 1:
            raise UsageError(f"-np must be at least 1; received {self.num_proc}")
        if not 1 <= self.min_num_proc <= self.num_proc:
            raise UsageError(f"--min-np must lie in 1..{self.num_proc} (-np); received {self.min_num_proc}")
        if self.max_num_proc is not None and self.max_num_proc < self.num_proc:
            raise UsageError(f"--max-np must be at least {self.num_proc} (-np); received {self.max_num_proc}")
        if not self.command:
            raise UsageError("no program was given; write it after the options: unisono horovodrun -np 4 --min-np 2 train.py")
        if not (self.elastic_timeout_s > 0 and math.isfinite(self.elastic_timeout_s)):
            raise UsageError(f"--elastic-timeout must be a number of seconds above 0; received {self.elastic_timeout_s:g}")
        if self.start_timeout_s is not None and not (self.start_timeout_s > 0 and math.isfinite(self.start_timeout_s)):
            raise UsageError(f"--start-timeout must be a number of seconds above 0; received {self.start_timeout_s:g}")
        if self.reset_limit is not None and self.reset_limit < 0:
            raise UsageError(f"--reset-limit must be 0 or more; received {self.reset_limit}")
        if self.slots_per_host is not None and self.slots_per_host < 1:
            raise UsageError(f"--slots-per-host must be at least 1; received {self.slots_per_host}")
        if self.cooldown_range is not None and not 0 < self.cooldown_range[0] <= self.cooldown_range[1] < math.inf:
            shown = " ".join(f"{number:g}" for number in self.cooldown_range)
            raise UsageError(
                f"--blacklist-cooldown-range must be two numbers of seconds above 0, the smaller first; received {shown}"
            )
        if self.discovery_script is None:
            slots = sum(number for _, number in self.hosts)
            if slots < self.min_num_proc:
                raise UsageError(
                    f"the hosts have {slots} slots (-H), fewer than --min-np {self.min_num_proc}; give the hosts more slots, or "
                    "give --host-discovery-script"
                )
            if slots < self.num_proc:
                raise UsageError(
                    f"-np {self.num_proc} needs {self.num_proc} slots, but the hosts have {slots} (-H); use -np {slots}, or give "
                    "the hosts more slots"
                )

    @property
    def most(self) -> int | None:
        """The most workers at a time; None: as many as there are slots."""
        if self.max_num_proc is not None or self.discovery_script is not None:
            return self.max_num_proc
        return self.num_proc


def used_slots(slots: Mapping[str, int], most: int | None) -> dict[str, int]:
    """Returns how many slots of each host are used for at most `most` workers (None: for as many as there are slots). Pure."""
    used, left = {}, sum(slots.values()) if most is None else most
    for host, number in slots.items():
        used[host] = min(number, left)
        left -= used[host]
    return used
