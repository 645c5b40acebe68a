"""The keys of a run, in two files that its user alone can read.

    exchange.json         the connection file: where the server listens, its public key, and the pair of keys that all workers share
    exchange-server.json  the server's own: its secret key beside the others

Everybody who can read the connection file may join. So both are made with mode 0600 from their first moment, and a file that
others may read is refused. A restarted server finds its keys and its port, and the workers that wait find it. One server at a
time: it locks its file.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from unisono.errors import UsageError
from unisono.files.sole_holder import HeldElsewhere, SoleHolder

_KEY = re.compile(r"[\x21-\x7e]{40}")
"""32 bytes as ZeroMQ writes them (Z85)."""
_ADDRESS = re.compile(r"[^\s/:]+:[0-9]{1,5}")

Pair = tuple[str, str]
"""Public and secret key."""
Record = TypeVar("Record", "ConnectionInfo", "Keys")


class ConnectionInfo(NamedTuple):
    """The connection file: what a worker needs to join."""

    address: str
    """host:port"""
    server_public: str
    client_public: str
    client_secret: str


class Keys(NamedTuple):
    """The server's key file."""

    server_public: str
    server_secret: str
    client_public: str
    client_secret: str


def read_connection_file(path: Path) -> ConnectionInfo:
    """Local: reads the connection file; raises FileNotFoundError if there is none (yet), UsageError for one that others may read
    or that is damaged."""
    with path.open("rb") as file:
        connection = _read_record(file.fileno(), path, ConnectionInfo)
    if not _ADDRESS.fullmatch(connection.address):
        raise _damaged_error(path, f"address {connection.address!r} is not host:port")
    return connection


def write_connection_file(path: Path, connection: ConnectionInfo) -> None:
    """Local: writes the connection file, wholly or not at all, readable by the user alone."""
    handle, draft = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".draft", dir=path.parent)  # with mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_text_of(connection))
            file.flush()
            os.fsync(file.fileno())
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


class ServerKeyFile:
    """The server's file, locked as long as this is open."""

    def __init__(self, connection_file: Path, make_pair: Callable[[], Pair]) -> None:
        """Local: reads the keys, or makes them if there are none; raises UsageError if another server holds them."""
        path = connection_file.with_name(f"{connection_file.stem}-server{connection_file.suffix}")
        self._holder: SoleHolder | None = None
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            self._holder = _hold(self._handle, path)
            if os.fstat(self._handle).st_size == 0:
                os.pwrite(self._handle, _text_of(Keys(*make_pair(), *make_pair())), 0)
                os.fsync(self._handle)
            self.keys = _read_record(self._handle, path, Keys)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Local: unlocks the file for another server. Idempotent."""
        if self._handle >= 0:
            if self._holder is not None:
                self._holder.release()
            os.close(self._handle)
            self._handle = -1


def _hold(handle: int, path: Path) -> SoleHolder:
    """Holds an open file for this server; raises `UsageError` if another server holds it."""
    try:
        return SoleHolder(handle, path)
    except HeldElsewhere:
        raise UsageError(f"another server is using the keys in {path}; wait until it ends, or give another run directory") from None


def _read_record(handle: int, path: Path, kind: type[Record]) -> Record:
    """Returns the record in an open file of keys; raises `UsageError` if others may read the file or it is damaged."""
    status = os.fstat(handle)
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageError(
            f"{path} holds keys and has mode {stat.S_IMODE(status.st_mode):04o}, so other users have access; run chmod 600 {path}, "
            "and if someone may have read it, start the run in another directory"
        )
    try:
        value = json.loads(os.pread(handle, status.st_size, 0))
    except ValueError as error:
        raise _damaged_error(path, f"not JSON: {error}") from error
    if not isinstance(value, dict) or set(value) != set(kind._fields) or not all(isinstance(one, str) for one in value.values()):
        raise _damaged_error(path, f"it must hold {', '.join(kind._fields)}")
    if bad := [name for name, one in value.items() if name != "address" and not _KEY.fullmatch(one)]:
        raise _damaged_error(path, f"{', '.join(bad)} must be a key of 40 characters")
    return kind(**value)


def _text_of(record: ConnectionInfo | Keys) -> bytes:
    """Returns the bytes of a record in its file: JSON."""
    return (json.dumps(record._asdict(), indent=2) + "\n").encode()


def _damaged_error(path: Path, why: str) -> UsageError:
    """Returns the error for a damaged file of keys."""
    return UsageError(f"{path} is damaged ({why}); stop the server, remove the file, and start the run again")
