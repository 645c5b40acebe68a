"""A worker of an elastic job as the driver sees it, a generation of workers, and how long the driver waits for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from unisono.launch.rank_process import RankProcess

STOP_S = 10.0
"""After a signal: how long workers have to end by themselves."""
MISTAKE = 2
"""The exit code of programs that were started wrongly."""
TOGETHER_S = 5.0
"""How long a worker that is ready waits for others that are starting, before the rest are interrupted for it."""
START_S = 600.0
"""How long workers may take from their start to `hvd.init()`."""
TICK_S = 1.0
MOST_FALSE_STARTS = 5
"""Generations in a row that could not meet although nobody died: then it is the network."""

MOST_FUTILE = 10
"""Generations that failed without a commit although all had met and nobody died: then it is the program."""

MOST_WITH_STRANGERS = 2
"""After so many false starts the others try it without workers that have never met anybody."""


@dataclass(eq=False)
class Worker:
    """One worker process, from its start to its end."""

    number: int
    host: str
    slot: int
    process: RankProcess
    ready: bool = False
    """Whether it waits for a rank."""
    ready_at: float = 0.0
    leaving: bool = False
    """Whether its host leaves the job."""
    dismissed: bool = False
    """Whether it was told that it gets no rank any more."""
    generation: int = -1
    since: int = 1 << 60
    has_joined: bool = False
    """Whether it ever met others."""
    has_state: bool = False
    finished: bool = False
    """Whether its training came to an end."""
    given_up: bool = False
    """Whether it was killed by us, as it is stuck."""

    def __str__(self) -> str:
        return f"worker {self.number} ({self.host}:{self.slot})"

    @property
    def exit_text(self) -> str:
        """Returns how the process ended, for messages."""
        return self.process.describe_exit().partition(f"rank {self.number} ")[2]


@dataclass
class Generation:
    """A fixed set of workers with their communicators."""

    number: int = -1
    members: list[Worker] = field(default_factory=list)
    joined: set[int] = field(default_factory=set)
    lost: Worker | None = None
    """The first member that died."""
    committed: bool = False
    why: str = ""
    """The reason that the first failed member reported."""
    stalled: bool = False
    """Whether the stall check has ended its communication."""

    @property
    def is_whole(self) -> bool:
        """Whether all members have met, and none has died since."""
        return self.lost is None and len(self.joined) == len(self.members)


class WorkerTable(dict[int, Worker]):
    """The workers that are alive, by their numbers. All methods are pure."""

    def members_of(self, generation: Generation) -> list[Worker]:
        """The remaining members of a generation."""
        return [one for one in self.values() if one.generation == generation.number >= 0 and not one.dismissed]

    def ready(self) -> list[Worker]:
        """The workers that wait for a rank."""
        return [one for one in self.values() if one.ready and not one.dismissed]

    def newcomers(self, generation: Generation) -> list[Worker]:
        """The workers that wait for a rank and are no members of this generation."""
        return [one for one in self.ready() if one.generation != generation.number]

    def staying(self) -> list[Worker]:
        """The workers that are neither dismissed nor on a host that goes."""
        return [one for one in self.values() if not (one.dismissed or one.leaving)]

    def present(self, generation: Generation) -> list[Worker]:
        """The workers that stay, and members that leave but are still at work."""
        return [*self.staying(), *(one for one in self.members_of(generation) if one.leaving and not one.ready)]

    def surplus(self, most: int | None) -> list[Worker]:
        """The staying workers beyond `most`: first those without the state, then the youngest."""
        return [] if most is None else sorted(self.staying(), key=lambda one: (not one.has_state, one.number))[most:]

    def starting(self) -> list[Worker]:
        """The workers that are alive and have not called `hvd.init()` yet."""
        return [one for one in self.values() if not one.ready and one.generation < 0]

    def state_holders(self) -> list[Worker]:
        """The workers that hold the state of the job."""
        return [one for one in self.values() if one.has_state]

    def after_loss(self, generation: Generation, least: int, state_exists: bool, has_committed: bool) -> str:
        """Returns how many workers are left, and whether they are enough, for messages."""
        if not state_exists:
            return f"{worker_count(len(self))} left"
        state_holders = len(self.state_holders())
        if state_holders >= least:
            since = "from the last commit" if has_committed else "without a commit"
            return f"{_continuing_text(len(self.members_of(generation)))} {since}"
        return f"{worker_count(state_holders)} left with the state of the job, fewer than --min-np {least}"

    def hosts_with_room(self, available: Mapping[str, int]) -> list[str]:
        """The hosts that have a free slot."""
        taken = {(one.host, one.slot) for one in self.values()}
        return [host for host, slots in available.items() if any((host, slot) not in taken for slot in range(slots))]

    def is_needed(self, worker: Worker) -> bool:
        """Whether this worker must wait for another to hand the state over: it holds the state and no staying worker does."""
        return worker.has_state and all(one.leaving or one.dismissed for one in self.state_holders())


def worker_count(number: int) -> str:
    """Returns "1 worker" or "3 workers". Pure."""
    return f"{number} worker{'' if number == 1 else 's'}"


def _continuing_text(number: int) -> str:
    """Returns "1 worker continues" or "3 workers continue". Pure."""
    return f"{worker_count(number)} {'continues' if number == 1 else 'continue'}"
