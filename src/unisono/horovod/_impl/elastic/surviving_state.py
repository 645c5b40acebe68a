"""The state that survives the death of other workers: a copy in memory, taken at each commit and sent to all workers after each
change."""

from __future__ import annotations

import copy
import pickle
import queue
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from unisono.errors import UsageError
from unisono.horovod._impl.elastic.worker_environment import NOTHING, REMOVED
from unisono.horovod._impl.exceptions import HostsUpdatedInterrupt
from unisono.horovod._impl.job.process_state import PROCESS


class State:
    """The base of all states, whatever they hold. Subclasses define `save`, `restore`, `sync` and, where needed, `reset`."""

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int]) -> None:
        """`bcast_object(value)` returns rank 0's value on all ranks; `get_rank` is kept for programs that read it. Local."""
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.Queue[tuple[float, int]] = queue.Queue()
        self._last_updated_timestamp: float = 0
        self._reset_callbacks: list[Callable[[], object]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Adds functions to be called after the workers have changed, e.g. to scale the learning rate by the new size. Local."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Handles a change of workers; `run` calls it before `sync`. Local."""
        self._host_messages = queue.Queue()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Notes the driver's message that hosts came or go. Local, any thread."""
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Saves, then checks for changes of hosts. Each commit copies everything, so choose how often. Collective, blocking."""
        self.save()
        PROCESS.driver_connection.report_commit()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises `HostsUpdatedInterrupt` on all ranks alike if rank 0 was told of a change of hosts. Collective, blocking."""
        before = latest = self._last_updated_timestamp
        changes = NOTHING
        while not self._host_messages.empty():
            timestamp, change = self._host_messages.get()
            if timestamp > latest:
                latest = timestamp
                changes |= int(change)
        # Rank 0's view for all: ranks that hear of it at different moments must stop at the same step.
        before, self._last_updated_timestamp, changes = self._bcast_object((before, latest, changes))
        if self._last_updated_timestamp > before:
            raise HostsUpdatedInterrupt(changes == REMOVED)

    def save(self) -> None:
        """Copies everything; `restore` returns to this copy. Local."""
        raise NotImplementedError(f"{type(self).__name__} must define save(), which keeps a copy of its values")

    def restore(self) -> None:
        """Returns to the last `save`. Local."""
        raise NotImplementedError(f"{type(self).__name__} must define restore(), which returns to the saved values")

    def sync(self) -> None:
        """Gives all ranks the present values of rank 0. Collective, blocking."""
        raise NotImplementedError(f"{type(self).__name__} must define sync(), which gives all ranks the values of rank 0")

    def reset(self) -> None:
        """Does what else is needed after the workers have changed, before `sync`. Local."""


class ObjectState(State):
    """A state of plain Python values, each an attribute of this object."""

    if TYPE_CHECKING:  # the attributes are those that the program names

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int], **kwargs: Any) -> None:
        """Local."""
        super().__init__(bcast_object, get_rank)
        self._saved_state = dict.fromkeys(kwargs)
        for name, value in kwargs.items():
            setattr(self, name, value)
        self._save_values()

    def save(self) -> None:
        """Copies all values. Local."""
        self._save_values()

    def restore(self) -> None:
        """Returns to the last copy. Local."""
        # Copies, or a list that the program fills later would be filled in what is saved too.
        for name, value in copy_attributes(self._saved_state).items():
            setattr(self, name, value)

    def sync(self) -> None:
        """Gives all ranks the present values of rank 0, and saves them. Collective, blocking."""
        if self._saved_state:
            values = self._bcast_object({name: getattr(self, name) for name in self._saved_state})
            for name, value in values.items():
                setattr(self, name, value)
            self._save_values()

    def _save_values(self) -> None:
        """Copies the values alone, for subclasses that copy more."""
        self._saved_state = copy_attributes({name: getattr(self, name) for name in self._saved_state})


def copy_attributes(values: dict[str, Any]) -> dict[str, Any]:
    """Returns copies of all attributes; an object that two of them share is shared by the copies too. Local."""
    try:
        return copy.deepcopy(values)
    except Exception:  # noqa: BLE001 - then each by itself, as far as it can be copied
        return {name: copy_attribute(name, value) for name, value in values.items()}


def copy_attribute(name: str, value: Any) -> Any:
    """Returns a copy of an attribute, as deep as possible. Raises `UsageError` for a value that could neither be restored nor sent.
    Local."""
    try:
        return copy.deepcopy(value)
    except Exception as error:  # noqa: BLE001 - copying runs the objects' own code
        # A tensor that was computed from weights is such a one, alone or in a list. It travels pickled, so that may serve here too.
        try:
            return pickle.loads(pickle.dumps(value))
        except Exception:  # noqa: BLE001 - as is pickling
            raise UsageError(
                f"state.{name} ({type(value).__name__}) cannot be copied, so it can be neither restored nor sent to other workers: "
                f"{error}; keep it outside the state, or store plain values"
            ) from error
