"""Memory that the processes of one machine share.

A segment is an anonymous memory file (memfd). Peers open it through the owner's /proc entry, so it never has a name: nothing
can be left behind by a killed process, and the size of /dev/shm does not matter.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unisono.errors import CommError

NAME = "unisono"
"""Name of our segments in /proc."""
SEGMENT_BYTES = 64 << 20
"""Usual size of a segment; pages that were never used cost nothing."""
BLOCK_BYTES = 4096
"""Smallest block, so that tensors start on a page."""


class Unreachable(CommError):
    """Raised where a peer's memory cannot be opened: its process is gone, or cannot be seen from here."""


class Segment:
    """One mapped memory file: of this process, or of a peer."""

    def __init__(self, fd: int, num_bytes: int) -> None:
        self.fd = fd
        self.identity = os.fstat(fd).st_ino
        self.num_bytes = num_bytes
        self.map = mmap.mmap(fd, num_bytes)
        self.array = np.frombuffer(self.map, dtype=np.uint8)
        self.bytes = torch.from_numpy(self.array)
        self.address = self.bytes.data_ptr()

    @classmethod
    def create(cls, num_bytes: int) -> Segment:
        """Creates a new segment of anonymous shared memory."""
        fd = os.memfd_create(NAME)
        os.ftruncate(fd, num_bytes)
        return cls(fd, num_bytes)


@dataclass(frozen=True)
class Place:
    """Place of a tensor's bytes: the segment of its owner, and the offset in it."""

    fd: int
    offset: int


class Arena:
    """This process's shared memory and its view of the peers'. Local; shared by a communicator and its subgroups."""

    def __init__(self) -> None:
        self._own: list[Segment] = []
        self._used_bytes = 0
        self._free: defaultdict[int, deque[tuple[Segment, int]]] = defaultdict(deque)
        self._peers: dict[tuple[int, int], Segment] = {}
        self._holders = 0
        self._lock = threading.Lock()
        """The helper thread of a communicator and the user's thread both come here. Finalizers only append, and need it not."""

    def hold(self) -> None:
        """Notes that one more communicator uses this arena."""
        self._holders += 1

    def release(self) -> None:
        """Gives up one use; the last one closes the files. Tensors that users still hold stay mapped in this process."""
        self._holders -= 1
        if self._holders == 0:
            for segment in self._own:
                os.close(segment.fd)
            self._own.clear()
            self._free.clear()
            self._peers.clear()

    def empty(self, shape: int | Sequence[int], dtype: torch.dtype) -> Tensor:
        """Returns an uninitialised tensor in shared memory; its block is used again once the last view of it is gone."""
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        num_bytes = prod(sizes) * dtype.itemsize
        if num_bytes == 0:
            return torch.empty(sizes, dtype=dtype)
        block_bytes = max(BLOCK_BYTES, 1 << (num_bytes - 1).bit_length())
        with self._lock:
            segment, offset = self._find_block(block_bytes)
        array = segment.array[offset : offset + num_bytes]
        blocks = self._free[block_bytes]
        weakref.finalize(array, blocks.append, (segment, offset)).atexit = False
        return torch.from_numpy(array).view(dtype).view(sizes)

    def place(self, tensor: Tensor) -> Place | None:
        """Returns the place of a tensor of this process, or None if it is not in shared memory."""
        address = tensor.data_ptr()
        for segment in self._own:
            offset = address - segment.address
            if 0 <= offset < segment.num_bytes:
                return Place(segment.fd, offset)
        return None

    def own_segment(self, fd: int) -> Segment:
        """Returns a segment of this process."""
        return next(segment for segment in self._own if segment.fd == fd)

    def peer_segment(self, pid: int, fd: int) -> Segment:
        """Returns a peer's segment, which is mapped at the first call."""
        segment = self._peers.get((pid, fd))
        if segment is None:
            with self._lock:
                segment = self._peers[pid, fd] = open_peer(pid, fd)
        return segment

    def _find_block(self, block_bytes: int) -> tuple[Segment, int]:
        """Returns segment and offset of a free block, or of a new one, if need be in a new segment."""
        free = self._free[block_bytes]
        if free:
            return free.popleft()
        if not self._own or self._used_bytes + block_bytes > self._own[-1].num_bytes:
            self._own.append(Segment.create(max(SEGMENT_BYTES, block_bytes)))
            self._used_bytes = 0
        offset = self._used_bytes
        self._used_bytes += block_bytes
        return self._own[-1], offset


def open_peer(pid: int, fd: int, identity: int | None = None) -> Segment:
    """Maps a segment that another process of this machine made. `identity` tells it from a file of another process that has the
    same numbers here (in another process name space)."""
    path = f"/proc/{pid}/fd/{fd}"
    remedy = "run all processes of a node as one user in one PID namespace, or use --engine gloo"
    own_fd = -1
    try:
        if not str(Path(path).readlink()).startswith(
            f"/memfd:{NAME}"
        ):  # closed since, and the number was given to a file of the user
            raise ValueError("closed")
        own_fd = os.open(path, os.O_RDWR)
        found = os.fstat(own_fd)
        if identity is not None and found.st_ino != identity:
            raise CommError(f"{path} is not the shared memory of process {pid} but belongs to another process; {remedy}")
        return Segment(own_fd, found.st_size)
    except (OSError, ValueError) as error:  # ValueError: it cannot be mapped, so it is something else
        reason = error.strerror if isinstance(error, OSError) else error
        raise Unreachable(f"shared memory of process {pid} cannot be opened ({path}: {reason}); {remedy}") from error
    finally:
        if own_fd >= 0:
            os.close(own_fd)
