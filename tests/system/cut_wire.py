"""A wire between two TCP peers that a test can cut, and that can swallow what goes in at one end."""

from __future__ import annotations

import selectors
import socket
import threading
from types import TracebackType


class CutWire:
    """Forwards every connection to `port` of this machine; `port` of its own is where to connect. Use it in a `with` statement."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        self.swallows = False
        """Whether what clients send is thrown away."""
        self.num_swallowed = 0
        self._ends: dict[socket.socket, socket.socket] = {}
        self._clients: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._is_over = False
        self._thread = threading.Thread(target=self._carry, name="unisono-test-wire", daemon=True)

    def __enter__(self) -> CutWire:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._is_over = True
        self._thread.join()
        self.cut()
        self._door.close()

    def cut(self) -> None:
        """All connections that there are; new ones may be made."""
        with self._lock:
            for end in self._ends:
                end.close()
            self._ends.clear()
            self._clients.clear()

    def _carry(self) -> None:
        while not self._is_over:
            with self._lock, selectors.DefaultSelector() as selector:
                for end in (self._door, *self._ends):
                    selector.register(end, selectors.EVENT_READ)
                for key, _ in selector.select(0.005):
                    assert isinstance(key.fileobj, socket.socket)
                    self._serve(key.fileobj)
            threading.Event().wait(0.001)  # others want the lock too

    def _serve(self, ready: socket.socket) -> None:
        if ready is self._door:
            client, _ = self._door.accept()
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except ConnectionRefusedError:
                client.close()
                return
            self._ends |= {client: server, server: client}
            self._clients.add(client)
        elif ready in self._ends:
            try:
                some = ready.recv(1 << 16)
                if self.swallows and ready in self._clients:
                    self.num_swallowed += len(some)
                elif some:
                    self._ends[ready].sendall(some)
            except ConnectionError:
                some = b""
            if not some:
                for end in (self._ends.pop(ready), ready):
                    self._ends.pop(end, None)
                    self._clients.discard(end)
                    end.close()
