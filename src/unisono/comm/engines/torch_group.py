"""The common part of gloo and NCCL, on PyTorch's process groups. No global default group is made or needed.

The host waits for gloo in slices, the GPU for NCCL in stream order; each engine has its file.
"""

from __future__ import annotations

import secrets
import socket
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from unisono.comm.arithmetic import reduce_parts
from unisono.comm.base import MAX, MIN, SUM, Call, Communicator, Group, Op, Watch
from unisono.comm.control_plane.control import Control
from unisono.comm.driver import HelperThread
from unisono.comm.engines.closed_port import refuse_connections
from unisono.comm.packing import pack, unpack
from unisono.comm.polling import LOSS_WAIT_S, raise_root_cause, wait_watched
from unisono.errors import MismatchedCall

LIBRARY_GRACE_S = 30.0
"""The library's own time limit is so much later than ours, which names the missing ranks."""

dist: Any = torch.distributed  # its stubs lack much of what is used here

WIRE: Mapping[torch.dtype, torch.dtype] = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.int16: torch.int32}
"""Types that are reduced in another type: halves are summed in float32 and rounded once; both libraries lack int16."""


class TorchCommunicator(Communicator):
    """The common part of gloo and NCCL. Empty parts are never sent."""

    def __init__(self, group: Group, control: Control, device: torch.device, time_limit_s: float, host: str) -> None:
        super().__init__(group, control, device, time_limit_s)
        self._host = host
        self._store: Any = None
        self._ports: frozenset[int] = frozenset()
        """Descriptors of listening sockets of the library that nobody needs once all members are connected."""
        self._store_port: frozenset[int] = frozenset()
        """The same of the store, on rank 0."""
        self._space = ""
        """Where the members keep their addresses in the store: known to them alone."""
        self._library: Any = None
        """The process group; its type depends on the build of PyTorch."""

    # ---- where they differ -----------------------------------------------------------------------------------------

    @abstractmethod
    def _build(self, host: str, port: int) -> Any:
        """Collective, blocking, on a separate thread: makes the library's process group, whose store is at `host` and `port`."""

    @abstractmethod
    def _begin_collective(self, watch: Watch, *tensors: Tensor) -> None:
        """Called before a collective on `tensors`: checks that it can be launched."""

    @abstractmethod
    def _wait_all(self, works: Sequence[Any], watch: Watch) -> None:
        """Waits for the launched calls."""

    @abstractmethod
    def _exchange_parts(self, outs: Sequence[Tensor], ins: Sequence[Tensor], watch: Watch) -> None:
        """Sends `ins[r]` to member r and receives `outs[r]` from it."""

    # ---- opening ---------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Collective, blocking: opens the communicator."""
        try:
            self._perform(Call("open"), self._connect)
        except BaseException:
            self.close()
            raise

    def _connect(self, watch: Watch) -> None:
        """Collective, blocking: exchanges the addresses of the members and makes the library's process group."""
        mine = (self._host, self._serve_store(), secrets.token_hex(16), self._listen())
        answers = self._exchange(f"{self.name}:{self.engine}", mine, watch)
        self._set_peers([answer[3] for answer in answers])
        host, port, self._space, _ = answers[0]
        # The constructor waits for all members and cannot be interrupted, so it runs on a separate thread.
        builder = HelperThread(f"unisono-open-{self.name}")
        try:
            self._library = wait_watched(builder.submit(lambda: self._build(host, port)), watch)
        except RuntimeError as error:
            raise_root_cause(watch, error, self.engine)
        finally:
            builder.close(timeout_s=0.0 if self._library is None else LOSS_WAIT_S)
        self._exchange(f"{self.name}:ready", None, watch)  # rank 0 may not close the store while somebody reads it
        refuse_connections(self._ports)

    def _listen(self) -> object:
        """Local: returns what the others must know to send us messages."""

    def _set_peers(self, addresses: Sequence[Any]) -> None:
        """Local: sets what `_listen` returned on the other members."""

    def _serve_store(self) -> int:
        """On rank 0: serves the store on a free port of this host's address. Returns the port, or 0 on the others."""
        if self.rank:
            return 0
        family, _, _, _, where = socket.getaddrinfo(self._host, 0, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(where[:2], family=family, backlog=1024)
        port = int(listener.getsockname()[1])
        descriptor = listener.detach()
        self._store_port = frozenset({descriptor})
        self._store = dist.TCPStore(
            self._host,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=self._library_limit(self.time_limit_s),
            master_listen_fd=descriptor,
        )
        return port

    def _join_store(self, host: str, port: int) -> Any:
        """Returns the store of this group at rank 0, connected to on members that do not serve it."""
        if self._store is None:
            limit = self._library_limit(self.time_limit_s)
            self._store = dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=limit)
        return dist.PrefixStore(self._space, self._store)

    def _library_limit(self, limit_s: float) -> timedelta:
        """Returns the time limit for the library: longer than ours, so that ours ends first."""
        return timedelta(seconds=limit_s + LIBRARY_GRACE_S)

    def _with_time_limit(self, options: Any, watch: Watch) -> Any:
        """Returns the options with the time limit of the call set."""
        options.timeout = self._library_limit(watch.limit_s)
        return options

    # ---- collectives -----------------------------------------------------------------------------------------------

    def _allreduce(self, bufs: list[Tensor], op: Op, watch: Watch) -> None:
        self._begin_collective(watch, *bufs)
        options = self._with_time_limit(dist.AllreduceOptions(), watch)
        options.reduceOp = {SUM: dist.ReduceOp.SUM, MIN: dist.ReduceOp.MIN, MAX: dist.ReduceOp.MAX}[op]
        packs = pack(bufs, WIRE)
        self._wait_all([self._library.allreduce([wire], options) for wire, _ in packs], watch)
        unpack(packs)

    def _broadcast(self, bufs: list[Tensor], root: int, watch: Watch) -> None:
        self._begin_collective(watch, *bufs)
        options = self._with_time_limit(dist.BroadcastOptions(), watch)
        options.rootRank, options.rootTensor = root, 0
        packs = pack([buf.view(torch.uint8) for buf in bufs], {})
        self._wait_all([self._library.broadcast([wire], options) for wire, _ in packs], watch)
        if self.rank != root:
            unpack(packs)

    def _allgather(self, out: Tensor, buf: Tensor, counts: list[int], watch: Watch) -> None:
        self._begin_collective(watch, out, buf)
        if len(set(counts)) > 1:
            self._exchange_parts(out.split_with_sizes(counts), [buf] * self.size, watch)
        elif buf.numel():
            options = self._with_time_limit(dist.distributed_c10d.AllgatherOptions(), watch)
            wire, part = out.view(torch.uint8), buf.view(torch.uint8)
            self._wait_all([self._library._allgather_base(wire, part, options)], watch)

    def _reduce_scatter(self, out: Tensor, buf: Tensor, counts: list[int], op: Op, watch: Watch) -> None:
        self._begin_collective(watch, out, buf)
        parts = torch.empty((self.size, out.numel()), dtype=out.dtype, device=out.device).unbind()
        self._exchange_parts(parts, buf.split_with_sizes(counts), watch)
        out.copy_(reduce_parts(parts, op))

    def _alltoall(self, out: Tensor, buf: Tensor, out_counts: list[int], in_counts: list[int], watch: Watch) -> None:
        self._begin_collective(watch, out, buf)
        self._exchange_parts(out.split_with_sizes(out_counts), buf.split_with_sizes(in_counts), watch)

    def _copy_own_part(self, outs: Sequence[Tensor], ins: Sequence[Tensor], watch: Watch) -> None:
        """Copies the part that goes to this rank itself; raises `MismatchedCall` where the lengths differ."""
        mine, kept = ins[self.rank], outs[self.rank]
        if mine.numel() != kept.numel():
            counts = f"this rank sends itself {mine.numel()} elements, but expects {kept.numel()}"
            text = f"{watch.call} on rank {self.rank} of {self.name}: {counts}"
            self.give_up(text, ())
            raise MismatchedCall(text)
        kept.copy_(mine)

    def _subgroup(self, group: Group) -> Communicator:
        comm = type(self)(group, self.control, self.device, self.time_limit_s, self._host)
        comm.open()
        return comm
