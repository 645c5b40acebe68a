"""Exchange of Python objects, from one rank to all or from all to all. Collective over the process set, blocking."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unisono.comm.control_plane.seals import seal, unseal
from unisono.horovod._impl.engine.operation_entry import Entry
from unisono.horovod._impl.engine.operation_request import ALLGATHER
from unisono.horovod._impl.exceptions import HorovodInternalError
from unisono.horovod._impl.job.process_sets import ProcessSet, global_process_set
from unisono.horovod._impl.job.process_state import PROCESS
from unisono.horovod._impl.torch.operations import broadcast_async_, synchronize
from unisono.horovod._impl.torch.submission import start


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Returns the root's object, on the root itself the same object; those of other ranks are not used."""
    titles = (None, None) if name is None else (f"{name}.length", f"{name}.object")
    at_root = PROCESS.topology.rank == root_rank
    mine, failure = _packed_or_nothing(obj) if at_root else (torch.empty(0, dtype=torch.uint8, device="cpu"), None)
    length = torch.tensor([mine.numel()], device="cpu")
    synchronize(broadcast_async_(length, root_rank, titles[0], process_set))
    if failure is not None:
        raise failure
    if not int(length):
        raise HorovodInternalError(f"rank {root_rank} could not pickle the object to broadcast; see the error of that rank")
    held = mine if at_root else torch.empty(int(length), dtype=torch.uint8, device="cpu")
    synchronize(broadcast_async_(held, root_rank, titles[1], process_set))
    return obj if at_root else _unpickled(held)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Returns the objects of all ranks, by rank of the set."""

    packed, failure = _packed_or_nothing(obj)

    def unpacked(entry: Entry) -> list[Any]:
        if failure is not None:
            raise failure
        if not all(entry.sizes[0]):
            raise HorovodInternalError("a rank could not pickle its object (allgather_object); see the error of that rank")
        return [_unpickled(part) for part in entry.outputs[0].split_with_sizes(entry.sizes[0])]

    title = None if name is None else f"{name}.object"
    objects: list[Any] = synchronize(start(ALLGATHER, [packed], process_set, unpacked, name=title))
    return objects


def _packed_or_nothing(obj: Any) -> tuple[Tensor, Exception | None]:
    """The pickled and sealed object; no bytes if that failed, which tells the others, so that they do not wait."""
    try:
        return _pickled(obj), None
    except Exception as error:  # noqa: BLE001 -- pickling runs the objects' own code; raised once the others know
        return torch.empty(0, dtype=torch.uint8, device="cpu"), error


def _pickled(obj: Any) -> Tensor:
    """Returns an object pickled and sealed, as a tensor of bytes."""
    import cloudpickle

    sealed = seal(PROCESS.job.world.control.own_pass, cloudpickle.dumps(obj))
    return torch.frombuffer(bytearray(sealed), dtype=torch.uint8)


def _unpickled(held: Tensor) -> Any:
    """Returns the object in a tensor of bytes; raises `UsageError` unless a process of this job has sealed it, as a pickle can run
    code."""
    import cloudpickle

    return cloudpickle.loads(unseal(PROCESS.job.world.control.own_pass, held.numpy().tobytes()))
