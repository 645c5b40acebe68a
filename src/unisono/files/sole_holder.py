"""A file that one process at a time holds: by the lock of the file system or, where that knows none, by a second file.

The second file, NAME.holder, can be created by one process only, which touches it every few seconds. A holder of this machine that
is gone is seen at once; that of another machine once its file has not been touched for a while.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import socket
import sys
import threading
from pathlib import Path
from time import monotonic, sleep
from uuid import uuid4

NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
"""Errors of file systems without locks, e.g. Lustre mounted without them."""
BEAT_S = 3.0
SILENCE_S = 30.0
"""A holder on another machine that has not touched its file for so long is gone."""
POLL_S = 0.2


class HeldElsewhere(Exception):
    """Raised where another process holds the file; its text names the process, if that is known."""


class SoleHolder:
    """Holds a file from its construction until `release`, or the end of this process. Local; blocking only while it finds out
    whether a holder on another machine is alive."""

    def __init__(self, handle: int, path: Path) -> None:
        """`handle` is the opened file `path`. Raises `HeldElsewhere`."""
        self._handle = handle
        self._mark: _Mark | None = None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HeldElsewhere from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            self._mark = _Mark(path.with_name(f"{path.name}.holder"))

    def release(self) -> None:
        """Releases the file for other processes; the handle stays open."""
        if self._mark is not None:
            self._mark.remove()
        else:
            fcntl.flock(self._handle, fcntl.LOCK_UN)  # for forked processes too, which share the lock


class _Mark:
    """The second file, made by this process and kept fresh by a thread."""

    def __init__(self, path: Path) -> None:
        """Raises `HeldElsewhere` if another process has made it and is alive."""
        self._path = path
        self._text = json.dumps(
            {"pid": os.getpid(), "host": socket.gethostname(), "process": _process(os.getpid()), "id": uuid4().hex}
        ).encode()
        while not self._make():
            found = _read(path)
            if found is None:
                continue
            if _is_alive(path, *found):
                raise HeldElsewhere(describe_holder(found[0]))
            if self._take_over(found[0]):
                break
        self._removed = threading.Event()
        self._thread = threading.Thread(target=self._keep_fresh, name="unisono-holder", daemon=True)
        self._thread.start()

    def remove(self) -> None:
        """Removes the file and ends the thread."""
        self._removed.set()
        self._thread.join()
        if (found := _read(self._path)) is not None and found[0] == self._text:
            self._path.unlink(missing_ok=True)

    def _make(self) -> bool:
        """Makes the file; returns False if it exists."""
        return _create(self._path, self._text)

    def _take_over(self, text: bytes) -> bool:
        """Replaces the file of a holder that is gone; returns False if it has changed meanwhile. Of all that try it, one has the
        ticket for this text; raises `HeldElsewhere` in the others."""
        ticket = self._path.with_name(f".{self._path.name}.{hashlib.sha256(text).hexdigest()[:12]}.draft")
        if not _create(ticket, self._text):
            raise HeldElsewhere(describe_holder(text))
        found = _read(self._path)
        is_same = found is not None and found[0] == text
        if is_same:
            ticket.replace(self._path)
        else:
            ticket.unlink(missing_ok=True)
        return is_same

    def _keep_fresh(self) -> None:
        """Body of the thread: touches the file at intervals. Ends the process if another one, for which this one seemed gone, has
        taken it: two of them would write the same files."""
        while not self._removed.wait(BEAT_S):
            try:
                found = _read(self._path)
                if found is None or found[0] == self._text:
                    os.utime(self._path)
                    continue
            except OSError:  # the file system does not answer now
                continue
            print(
                f"unisono: this process was suspended for so long that another one has taken {self._path.parent}; it ends without "
                "writing anything more",
                file=sys.stderr,
                flush=True,
            )
            os._exit(1)


def describe_holder(text: bytes) -> str:
    """Pure: returns which process wrote this text, for a message."""
    try:
        known = json.loads(text)
        return f"process {known['pid']} on {known['host']}"
    except (ValueError, KeyError, TypeError):
        return "an unknown process"


def _create(path: Path, content: bytes) -> bool:
    """Creates a file; returns False if it exists."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    return True


def _read(path: Path) -> tuple[bytes, int] | None:
    """Returns the content of a file and when it was last touched, as its server knows it; None if there is none."""
    try:
        with path.open("rb") as file:  # opened, as network file systems keep what they know of a file until then
            return file.read(), os.fstat(file.fileno()).st_mtime_ns
    except FileNotFoundError:
        return None


def _is_alive(path: Path, text: bytes, touched: int) -> bool:
    """Whether the process that wrote this file is alive. Blocking for `SILENCE_S` if it is gone and was not on this machine."""
    try:
        known = json.loads(text)
        pid, process = int(known["pid"]), str(known["process"])
    except (ValueError, KeyError, TypeError):
        process = ""
    if process and process.split()[:2] == _process(os.getpid()).split()[:2]:
        return _process(pid) == process
    deadline = monotonic() + SILENCE_S
    while monotonic() < deadline:
        sleep(POLL_S)  # nothing tells of a change on another machine
        if _read(path) != (text, touched):
            return True
    return False


def _process(pid: int) -> str:
    """Returns boot, process table and start time of a process, which no other process ever has together; empty without /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        start = "" if fields[0] in "ZX" else fields[19]
        return f"{boot} {Path('/proc/self/ns/pid').readlink()} {pid} {start}"
    except OSError:
        return ""
