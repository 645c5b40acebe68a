"""The names of one optimiser's operations, and the options that all ranks must choose alike for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import ref

from unisono.horovod._impl.job.persistent_ids import PersistentId
from unisono.horovod._impl.torch.object_exchange import allgather_object

if TYPE_CHECKING:
    from unisono.horovod._impl.engine.process_set_channel import Channel
    from unisono.horovod._impl.job.process_sets import ProcessSet


class NameSpace:
    """The names of one optimiser's operations. Its number is drawn when the optimiser is used for the first time, so that one that
    is only made on a rank does not count; after the next `init` it is another. So names are asked for when an operation starts.

    It does not keep the number alive: TensorFlow never frees a compiled step, and optimisers that are gone do not count.
    """

    def __init__(self, title: str, persistent_id: PersistentId, choices: Mapping[str, Any]) -> None:
        """`choices` by the names of the user's arguments: with others the ranks would not meet, or learn different things."""
        self.title = title
        self.process_set: ProcessSet = persistent_id.process_set
        self._choices = {"name": title, **choices}
        self._persistent_id = ref(persistent_id)
        self._agreed_in: ref[Channel] | None = None

    @property
    def number(self) -> int:
        """The number of the optimiser. Local."""
        persistent_id = self._persistent_id()
        if persistent_id is None:
            raise ValueError(
                f"{self.title}: the optimizer of this compiled step was deleted (hvd.DistributedOptimizer); keep the optimizer as "
                "long as the step is used"
            )
        return persistent_id.number

    def enter(self) -> None:
        """Draws the number if the optimiser is used for the first time. All ranks come here in the same order of optimisers.
        Local."""
        _ = self.number

    def name(self, what: str) -> str:
        """Returns the name of an operation. Local."""
        return f"{self.title}.{self.number}.{what}"

    def agree(self) -> None:
        """Raises `ValueError`, the same on all ranks, if their options differ. Collective over the process set, blocking, once
        after each `init`."""
        channel = self.process_set.channel()
        if self._agreed_in is not None and self._agreed_in() is channel:
            return
        # Without the title, so that ranks meet here whose optimisers are of different classes.
        everybodys = allgather_object(self._choices, f"optimizer.{self.number}.choices", self.process_set)
        first = everybodys[0]
        for rank, other in zip(channel.ranks, everybodys, strict=True):
            if other != first:
                names = [name for name in first if other[name] != first[name]]
                said = " and ".join(
                    f"{name}={first[name]!r} on rank {channel.ranks[0]}, {other[name]!r} on rank {rank}" for name in names
                )
                raise ValueError(
                    f"the ranks have different optimizers: {said} (hvd.DistributedOptimizer); give all ranks the same arguments. "
                    "For a model from a file, give backward_passes_per_step and average_aggregated_gradients to hvd.load_model"
                )
        self._agreed_in = ref(channel)
