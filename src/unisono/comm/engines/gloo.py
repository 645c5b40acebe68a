"""gloo: collectives over TCP between any hosts."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from unisono.comm.base import Envelope, Group, Watch
from unisono.comm.control_plane.control import Control
from unisono.comm.driver import Work
from unisono.comm.engines.closed_port import listening_sockets
from unisono.comm.engines.tcp_messages import Messages, bytes_of
from unisono.comm.engines.torch_group import TorchCommunicator, dist
from unisono.comm.polling import CHECK_INTERVAL_S, raise_root_cause
from unisono.errors import CommError

_CARD_BYTES = 256
_CARD_TAG, _DEAL_TAG = 1 << 16, 1 << 17
"""Tags above those of users."""


class GlooCommunicator(TorchCommunicator):
    """The engine gloo: gloo's collectives over TCP. Messages are our own: see `comm/engines/tcp_messages.py`."""

    engine = "gloo"

    def __init__(self, group: Group, control: Control, device: torch.device, time_limit_s: float, host: str) -> None:
        super().__init__(group, control, device, time_limit_s, host)
        self._messages: Messages | None = None
        self._unfinished: Sequence[Any] = ()

    def _listen(self) -> object:
        self._messages = Messages(self.name, self.rank, self.size, self._host)
        return self._messages.listen()

    def _set_peers(self, addresses: Sequence[Any]) -> None:
        assert self._messages is not None
        self._messages.open(addresses)

    def _build(self, host: str, port: int) -> Any:
        options = dist.ProcessGroupGloo._Options()
        before = listening_sockets()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=self._host)]
        # gloo and the store keep every connection, and gloo ends the process when it can open no more files.
        self._ports = (listening_sockets() - before) | self._store_port
        options._timeout = self._library_limit(self.time_limit_s)
        return dist.ProcessGroupGloo(self._join_store(host, port), self.rank, self.size, options)

    def _begin_collective(self, watch: Watch, *tensors: Tensor) -> None:  # noqa: ARG002 -- the host waits, so nothing is lent
        """Compares the calls of the members first: gloo ends the process when it gets more bytes than it expects."""
        if self.size > 1:
            self._compare(watch)()

    def _compare(self, watch: Watch) -> Callable[[], None]:
        """Sends the call to the next member; the returned function waits for that of the previous member and refuses one that
        differs."""
        assert self._messages is not None
        text = str(watch.call).encode()
        card = crc32(text).to_bytes(4, "little") + text[: _CARD_BYTES - 4].ljust(_CARD_BYTES - 4)
        theirs = bytearray(_CARD_BYTES)
        before = (self.rank - 1) % self.size
        self._messages.start_send(memoryview(card), (self.rank + 1) % self.size, _CARD_TAG, watch)
        shown = self._messages.start_recv(memoryview(theirs), before, _CARD_TAG, watch)

        def compared() -> None:
            shown.wait()
            if theirs != card:
                raise watch.mismatch(before, theirs[4:].decode(errors="replace").rstrip())

        return compared

    def _wait_all(self, works: Sequence[Any], watch: Watch) -> None:
        self._unfinished = works
        for work in works:
            while not work.is_completed():
                with suppress(RuntimeError):  # the slice is over; an error of the call itself comes again below
                    work.wait(timedelta(seconds=CHECK_INTERVAL_S))
                if not work.is_completed():
                    watch.poll()
            try:
                work.wait()
            except RuntimeError as error:
                raise_root_cause(watch, error, "gloo")
        self._unfinished = ()

    def _exchange_parts(self, outs: Sequence[Tensor], ins: Sequence[Tensor], watch: Watch) -> None:
        assert self._messages is not None
        self._copy_own_part(outs, ins, watch)
        others = [(self.rank + step) % self.size for step in range(1, self.size)]
        works: list[Work[object]] = [
            *(self._messages.start_recv(bytes_of(outs[r]), r, _DEAL_TAG, watch) for r in reversed(others)),
            *(self._messages.start_send(bytes_of(ins[r]), r, _DEAL_TAG, watch) for r in others),
        ]
        try:
            for work in works:
                work.wait()
        except CommError as error:
            if self._unusable is None:  # sizes differ, which the others may not see
                self.give_up(str(error), ())
            raise

    def _start_send(self, buf: Tensor, dest: int, tag: int, watch: Watch) -> Work[None]:
        assert self._messages is not None
        return self._messages.start_send(bytes_of(buf), dest, tag, watch)

    def _start_recv(self, buf: Tensor, source: int, tag: int, watch: Watch) -> Work[Envelope]:
        assert self._messages is not None
        return self._messages.start_recv(bytes_of(buf), source, tag, watch)

    def _close(self) -> None:
        if self._messages is not None:
            self._messages.close()
        if any(not work.is_completed() for work in self._unfinished):
            # The destructor would wait for a call that was left to itself and may never end. A thread could wait for it, but
            # C++ aborts the process if the interpreter ends meanwhile. So the group stays until the process ends.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._library))
        self._library = self._store = None
