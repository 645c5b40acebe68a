"""Which ranks serve and which work, where workers call a server."""

from __future__ import annotations

from dataclasses import dataclass, fields

from unisono.algorithms.roles import LayoutOptions, Roles
from unisono.algorithms.server.virtual_clock import NO_TIME, VirtualClock
from unisono.errors import UsageError, unknown_name


@dataclass(frozen=True)
class ServerLayout(Roles):
    """The first rank serves, or the first ranks do together; the others are workers, or groups of processes that act as one worker
    each. With `simulate` all of them are in one process, as they are where there is only one. With `elastic` workers are processes
    that may join and leave; the batch is divided by `elastic`, however many there are."""

    simulate: int | None = None
    elastic: int | None = None
    servers: int = 1
    replays: bool = False
    """Whether a recorded order is repeated: then workers that came and went are virtual."""
    clock: VirtualClock = NO_TIME
    """The clock of virtual workers."""

    @classmethod
    def of(cls, size: int, layout: LayoutOptions) -> ServerLayout:
        """Pure: the layout of `size` processes; refuses what cannot be divided and what contradicts."""
        layout.check_clock()
        known = [entry.name for entry in fields(VirtualClock)]
        for name in layout.clock:
            if name not in known:
                raise unknown_name("setting", name, known, "of a simulation (--set simulate.NAME)")
        clock = NO_TIME if layout.simulate is None else VirtualClock(**layout.clock)
        return cls(size, layout.group or 1, layout.simulate, layout.elastic, layout.servers or 1, layout.replays, clock)

    def __post_init__(self) -> None:
        if self.servers > 1:
            self._check_servers()
        if self.simulate is not None and self.size > 1:
            raise UsageError(f"--simulate {self.simulate} runs all workers in one process; you started {self.size}. Start only one")
        if self.elastic is not None and self.replays and self.size > 1:
            raise UsageError(f"--elastic with --replay repeats a run in one process; you started {self.size}. Start only one")
        if self.elastic is not None and (self.size > 1 or self.group > 1 or self.simulate is not None):
            raise UsageError(
                "with --elastic each worker is one process that joins by itself; leave out --group and --simulate, and start only "
                "one process"
            )
        if self.simulate is not None and self.group > 1:
            raise UsageError("--group needs real processes; leave it out of a simulation (--simulate)")
        if self.size == 1 and self.group > 1:
            raise UsageError(
                f"--group {self.group} needs at least {1 + self.group} processes, a server and {self.group} for each worker; you "
                f"started 1. Use -n {1 + self.group}"
            )
        if self.num_others % self.group:
            low = self.num_others // self.group * self.group + self.servers
            fit = f"{low} or {low + self.group}" if low > self.servers else str(low + self.group)
            servers = "one server" if self.servers == 1 else f"{self.servers} servers"
            raise UsageError(
                f"{self.size} processes are {servers} and {self.num_others} for workers, which cannot be divided into groups of "
                f"{self.group} (--group); start {fit}"
            )

    def _check_servers(self) -> None:
        """Refuses several servers with --simulate or --elastic, or with no process left to work."""
        for option, value in (("--simulate", self.simulate), ("--elastic", self.elastic)):
            if value is not None:
                raise UsageError(f"--servers {self.servers} needs processes that all start together; leave out {option}")
        if self.size <= self.servers:
            raise UsageError(
                f"--servers {self.servers} needs at least {self.servers + self.group} processes; you started {self.size}. Use "
                f"-n {self.servers + self.group}, or fewer --servers"
            )

    @property
    def is_virtual(self) -> bool:
        """Whether server and workers live in one process."""
        return self.size == 1 and (self.elastic is None or self.replays)

    @property
    def num_others(self) -> int:
        """Number of processes that do not serve."""
        return self.size - self.servers

    def is_server(self, rank: int) -> bool:
        """Pure: whether a rank serves."""
        return rank < self.servers

    @property
    def num_workers(self) -> int:
        """Number of workers; a group of processes counts once."""
        if self.elastic is not None:
            return self.elastic
        return (self.simulate or 1) if self.is_virtual else self.num_others // self.group

    def worker(self, rank: int) -> int:
        """Pure: the number of the worker to which a rank belongs."""
        return (rank - self.servers) // self.group

    @property
    def num_parts(self) -> int:
        return self.num_workers

    @property
    def num_shards(self) -> int:
        return self.group

    def shard(self, rank: int) -> int:
        """Pure: the place of a rank in its group; a server is alone."""
        return 0 if self.is_server(rank) else (rank - self.servers) % self.group

    def batch(self, global_batch: int) -> int:
        """Pure: number of samples of one step, which is one worker's; the global batch is that of all workers."""
        num = self.num_workers
        if global_batch % num:
            low = global_batch // num * num
            fit = f"{low} or {low + num}" if low else str(num)
            raise UsageError(
                f"global_batch {global_batch} cannot be divided over {num} workers (--global-batch); use {fit}, or --local-batch"
            )
        return global_batch // num
