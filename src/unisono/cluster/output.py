"""What the ranks print, line by line with the rank in front, without ever making the launcher wait for its reader."""

from __future__ import annotations

import os
import re
import selectors
from collections.abc import Callable
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from time import strftime
from typing import IO

from unisono.cluster.sink import Sink
from unisono.cluster.terminal import columns_of

MAX_LINE_BYTES = 1 << 20
"""A longer line is cut, so that a rank which prints no line end cannot fill the launcher's memory."""
READ_BYTES = 1 << 16
COLOURS = (36, 33, 32, 35, 34, 31)
TOLD_CODES = (1, 2, 75, 130)
"""A failure, a user's mistake, a stop in time, an interruption: with these a Python program ends that says why."""
LINE_END = re.compile(rb"(\r?\n|\r)")
CONTROL_SEQUENCE = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


class Console:
    """The launcher's own two outputs; lines of one never cut into lines of the other, also where both are one terminal."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        colour: bool,
        logged: bool,
        job: str | None = None,
        voice: str = "all",
        timestamps: bool = False,
        reports: bool = False,
    ) -> None:
        """`logged`: whether log files keep the lines too. `job`: the name that the user gave it, to tell it from others. `voice`:
        and `timestamps`: as in `LaunchConfig`. `reports`: whether the one who started us hears of us."""
        self._name = f"unisono ({job})" if job else "unisono"
        self.out = Sink(selector, 1)
        self.err = self.out if os.path.sameopenfile(1, 2) else Sink(selector, 2)
        self._selector = selector
        self._colour = colour
        self._logged = logged
        self._voice = voice
        self.timestamps = timestamps
        self._reports = reports

    @property
    def failure(self) -> OSError | None:
        """Why lines are lost, if they are and no log keeps them: there is no use in ranks that go on."""
        return None if self._logged else self.out.error or self.err.error

    @property
    def flushed(self) -> bool:
        return self.out.empty and self.err.empty

    def say(self, text: str) -> None:
        """Local, not blocking: a line of the launcher itself, on standard error."""
        self.err.write(f"{self._name}: {text}\n".encode())

    def report(self, line: bytes) -> None:
        """Local, not blocking: to the one who started us (`cluster/orders.py`), if it listens."""
        if self._reports:
            self.err.write(line + b"\n")

    def tell_what_was_lost(self) -> None:
        """Local: a full disk is no secret. A reader that left on purpose needs no message."""
        for sink, name in ((self.out, "output"), (self.err, "error")):
            if sink.error is not None and not isinstance(sink.error, BrokenPipeError):
                self.say(f"standard {name} could not be written: {sink.error.strerror}; lines of the ranks were lost")

    def attach(self, rank: int, out: IO[bytes], err: IO[bytes], log: FileIO | None) -> RankOutput:
        """Local: pass on what comes from these two pipes until they end."""
        return RankOutput(self, self._selector, rank, out, err, log)

    def sink_of(self, rank: int) -> Sink:
        """Where standard output of a rank goes: beside the one that speaks for all, the others are heard as errors are."""
        return self.err if self._voice == "first" and rank else self.out

    def is_told(self, code: int) -> bool:
        """Whether a rank that ended with this code has itself said why: our own verbs do, whose first rank speaks for all."""
        return self._voice == "first" and code in TOLD_CODES

    def is_drawn(self, rank: int) -> bool:
        """Whether standard output of a rank is passed on as it is, as somebody sees how it is drawn."""
        return self._voice == "first" and not rank and columns_of(1) is not None

    def prefix(self, rank: int, fd: int) -> bytes:
        if self._voice == "first" and not rank:
            return b""
        if self._colour and os.isatty(fd):
            return f"\x1b[{COLOURS[rank % len(COLOURS)]}m[{rank}]\x1b[0m ".encode()
        return f"[{rank}] ".encode()

    def drop(self) -> None:
        """Local: forget what is not written yet."""
        self.out.drop()
        self.err.drop()


class RankOutput:
    """Both outputs of one rank and its log file, which takes the lines of both as they come."""

    def __init__(
        self, console: Console, selector: selectors.BaseSelector, rank: int, out: IO[bytes], err: IO[bytes], log: FileIO | None
    ) -> None:
        self._console = console
        self._log = log
        logged = None if log is None else self._write_log
        sink = console.sink_of(rank)
        self._streams = (
            (DrawnStream if console.is_drawn(rank) else Stream)(
                selector, out, sink, console.prefix(rank, sink.fd), logged, console.timestamps
            ),
            Stream(selector, err, console.err, console.prefix(rank, 2), logged, console.timestamps),
        )

    def drain(self) -> None:
        """Local, not blocking: take what the pipes hold now."""
        for stream in self._streams:
            stream.drain()

    def close(self) -> None:
        """Local: pass on the last unfinished lines and stop reading."""
        for stream in self._streams:
            stream.close()
        if self._log is not None:
            self._log.close()
            self._log = None

    def _write_log(self, lines: bytes) -> None:
        rest = memoryview(lines)
        while rest and self._log is not None:
            try:
                rest = rest[self._log.write(rest) :]
            except OSError as error:
                self._console.say(f"cannot write {self._log.name!s}: {error.strerror}; this log ends here")
                self._log.close()
                self._log = None


class Stream:
    """One pipe from a rank to a sink."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        pipe: IO[bytes],
        sink: Sink,
        prefix: bytes,
        log: Callable[[bytes], None] | None,
        timestamps: bool = False,
    ) -> None:
        self._timestamps = timestamps
        self._selector = selector
        self._pipe = pipe
        self._sink = sink
        self._prefix = prefix
        self._log = log
        self._partial = bytearray()
        self._paused = True
        os.set_blocking(pipe.fileno(), False)
        sink.sources.add(self)
        self.resume()

    def read(self) -> bool:
        """Local, not blocking: one piece; whether there may be more."""
        if self._pipe.closed:
            return False
        try:
            data = os.read(self._pipe.fileno(), READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        self._take(data)
        return True

    def drain(self) -> None:
        """Local, not blocking: take what the pipe holds now. Bounded, as a child of the rank may go on writing."""
        for _ in range(32):
            if not self.read():
                return

    def pause(self) -> None:
        if not self._paused and not self._pipe.closed:
            self._selector.unregister(self._pipe)
            self._paused = True

    def resume(self) -> None:
        if self._paused and not self._pipe.closed:
            self._selector.register(self._pipe, selectors.EVENT_READ, self.read)
            self._paused = False

    def close(self) -> None:
        """Local: pass on the last, unfinished line. Idempotent."""
        if self._pipe.closed:
            return
        self.pause()
        self._pipe.close()
        self._sink.sources.discard(self)
        self._finish()

    def _take(self, data: bytes) -> None:
        if self._partial.endswith(b"\r"):
            self._partial.pop()
            data = b"\r" + data
        end = self._end_in(data)
        if end:
            self._emit(bytes(self._partial) + data[:end])
            self._partial.clear()
        self._partial += data[end:]
        if len(self._partial) > MAX_LINE_BYTES:
            self._finish()

    def _end_in(self, data: bytes) -> int:
        """Where the last line ends that may be shown: also one that a progress bar draws over next, or it would be seen only when
        it is full. A return at the very end may be half of a line end."""
        return max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1

    def _finish(self) -> None:
        if self._partial:
            self._emit(bytes(self._partial) + b"\n")
            self._partial.clear()

    def _emit(self, lines: bytes) -> None:
        """Each with its end."""
        if self._log is not None:
            self._log(lines)
        prefix = strftime("%Y-%m-%d %H:%M:%S ").encode() + self._prefix if self._timestamps else self._prefix
        if b"\r" in lines:
            parts = LINE_END.split(lines)  # line, end, line, end ..., nothing
            pairs = zip(parts[::2], parts[1::2], strict=False)
            self._sink.write(b"".join(prefix + line + end for line, end in pairs if line or end != b"\r"))
        else:
            self._sink.write(prefix + lines[:-1].replace(b"\n", b"\n" + prefix) + b"\n")


class DrawnStream(Stream):
    """One pipe from a rank to a terminal, which gets every byte at once, so that a progress bar moves. The log gets the lines as
    they stand in the end."""

    def _take(self, data: bytes) -> None:
        self._sink.pass_on(data)
        super()._take(data)
        if b"\r" in self._partial:
            del self._partial[: self._partial.rindex(b"\r")]  # what is drawn over needs no memory

    def _end_in(self, data: bytes) -> int:
        return data.rfind(b"\n") + 1

    def _finish(self) -> None:
        self._sink.end_line()
        super()._finish()

    def _emit(self, lines: bytes) -> None:
        if self._log is not None:
            shown = (line.rstrip(b"\r").rpartition(b"\r")[2] for line in lines[:-1].split(b"\n"))
            self._log(CONTROL_SEQUENCE.sub(b"", b"\n".join(shown)) + b"\n")


@dataclass(frozen=True)
class LogFolder:
    """One file for each rank, which holds the lines of all its lives."""

    folder: Path

    @classmethod
    def make(cls, folder: Path, ranks: range) -> LogFolder:
        """Local: the folder with an empty file for each rank; raises OSError with the path that cannot be written."""
        folder.mkdir(parents=True, exist_ok=True)
        logs = cls(folder)
        for rank in ranks:
            logs._path(rank).write_bytes(b"")
        return logs

    def open(self, rank: int) -> FileIO:
        return FileIO(self._path(rank), "ab")

    def _path(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.log"
