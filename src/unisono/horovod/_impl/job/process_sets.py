"""Process sets: groups of ranks that communicate among themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from unisono.horovod._impl.engine.process_set_channel import Channel
from unisono.horovod._impl.job.process_state import GLOBAL_ID, PROCESS

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]


class ProcessSet:
    """Some ranks of the job. It can be used once it is registered: by `init`, or by `add_process_set`."""

    def __init__(self, ranks_or_comm: Any) -> None:
        if not isinstance(ranks_or_comm, Iterable):
            given = type(ranks_or_comm).__name__
            raise ValueError(f"a process set needs a list of ranks, such as [0, 2]; received a {given}")
        self.process_set_id: int | None = None
        self.ranks: list[int] | None = sorted(int(rank) for rank in ranks_or_comm)
        self.mpi_comm = None  # programs may look at it; a set is made of ranks here

    def included(self) -> bool:
        """Whether this process belongs to the set. Local."""
        return PROCESS.topology.rank in self._ranks_of_set()

    def size(self) -> int:
        """Number of ranks of the set. Local."""
        return len(self._ranks_of_set())

    def rank(self) -> int:
        """The rank of this process in the set; `ValueError` if it does not belong to it. Local."""
        mine, members = PROCESS.topology.rank, self._ranks_of_set()
        if mine not in members:
            raise ValueError(f"rank {mine} is not in {self}; check included() first")
        return members.index(mine)

    def is_registered(self) -> bool:
        """Whether the set can be used. Its number alone does not tell: after `shutdown` and `init` it may belong to another set.
        Local."""
        registered = None if self.process_set_id is None else PROCESS.job.ranks.get(self.process_set_id)
        return registered is not None and list(registered) == self.ranks

    def registered_id(self) -> int:
        """The number of the set; `ValueError` if it is not registered. Local."""
        if not self.is_registered():
            raise ValueError(f"{self} is not registered; register it with hvd.init(process_sets=[...]) or hvd.add_process_set")
        assert self.process_set_id is not None
        return self.process_set_id

    def channel(self) -> Channel:
        """The channel to which operations are submitted; `ValueError` if this process does not belong to the set. Local."""
        return PROCESS.channel(self.registered_id())

    def _ranks_of_set(self) -> tuple[int, ...]:
        """The ranks of the job that belong to the set; `ValueError` if it is not registered."""
        return PROCESS.ranks_of(self.registered_id())

    def __repr__(self) -> str:
        return f"ProcessSet(id={self.process_set_id}, ranks={self.ranks})"


class _Everybody(ProcessSet):
    """The set of all ranks, which exists before the ranks are known."""

    def __init__(self) -> None:
        super().__init__(())
        self.process_set_id = GLOBAL_ID

    def is_registered(self) -> bool:
        return PROCESS.has_begun

    def registered_id(self) -> int:
        """0, also before `init`."""
        return GLOBAL_ID

    def __repr__(self) -> str:
        return "global_process_set"


global_process_set: ProcessSet = _Everybody()
"""All ranks. One object, as it is the default of every operation; who its members are is asked of the running job."""


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Registers a set; all ranks name the same one, in the same order of calls. Collective over all ranks, blocking."""
    given = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    PROCESS.require_dynamic("add_process_set")
    register(given)
    return given


def remove_process_set(process_set: ProcessSet) -> bool:
    """Unregisters a set; returns False if it is the global one or not registered. Collective over all ranks, blocking."""
    if process_set.process_set_id == GLOBAL_ID or not process_set.is_registered():
        return False
    PROCESS.require_dynamic("remove_process_set")
    PROCESS.remove_set(process_set.registered_id())
    process_set.process_set_id = None
    return True


def init(comm: object = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Begins the communication. Without a launcher the job is this process alone. Collective over all processes of the job,
    blocking.

    May be called again; sets that are not registered yet then are. `process_sets="dynamic"` lets sets be added later.
    """
    _refuse_other_comm(comm)
    if isinstance(process_sets, str) and process_sets != "dynamic":
        raise ValueError(f'process_sets must be a list of ProcessSet, "dynamic" or None; received {process_sets!r}')
    PROCESS.begin(dynamic=process_sets == "dynamic")
    global_process_set.ranks = list(PROCESS.ranks_of(GLOBAL_ID))
    _check_ranks(comm)
    if process_sets is not None and not isinstance(process_sets, str):
        before = {tuple(ranks): set_id for set_id, ranks in PROCESS.sets().items() if set_id != GLOBAL_ID}
        for process_set in process_sets:
            if not process_set.is_registered():  # else it was, by an earlier call
                # Another object may have been given for these ranks then: a cell of a notebook is run twice.
                found = before.pop(tuple(process_set.ranks or ()), None)
                if found is None:
                    register(process_set)
                else:
                    process_set.process_set_id = found


def register(process_set: ProcessSet) -> None:
    """Registers these sets. Collective over all ranks, blocking."""
    assert process_set.ranks is not None
    process_set.process_set_id = PROCESS.add_set(process_set.ranks)


def _is_communicator(comm: object) -> bool:
    """Whether a value looks like a communicator of mpi4py."""
    return hasattr(comm, "Get_rank") and hasattr(comm, "Get_size")


def _refuse_other_comm(comm: object) -> None:
    """Raises `ValueError` for a `comm` that is neither None, nor a list of ranks, nor a communicator of mpi4py."""
    is_list = isinstance(comm, (list, tuple)) and all(isinstance(rank, int) for rank in comm)
    if comm is not None and not is_list and not _is_communicator(comm):
        raise ValueError(
            f"comm must be None, a list of ranks or a communicator of mpi4py; received a {type(comm).__name__} (hvd.init); "
            "leave it out, and use process sets for parts of the job"
        )


def _check_ranks(comm: Any) -> None:
    """Refuses a `comm` that is not the list of all ranks in their order."""
    rank, everybody = PROCESS.topology.rank, list(PROCESS.ranks_of(GLOBAL_ID))
    whole = (
        (comm.Get_rank(), comm.Get_size()) == (rank, len(everybody))
        if _is_communicator(comm)
        else sorted(comm or everybody) == everybody
    )
    if not whole:
        raise ValueError(
            f"comm must be None or all ranks 0..{len(everybody) - 1} in order; received {comm} (hvd.init); use process sets for "
            "parts of the job"
        )
