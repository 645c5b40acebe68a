"""Forwards the output of the ranks line by line, with the rank as prefix, without blocking on a slow reader."""

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

from unisono.cluster.terminal import columns_of
from unisono.launch.output_sink import Sink

MAX_LINE_BYTES = 1 << 20
"""Maximum length of a line; a longer one is cut, so that a rank which prints no line end cannot fill the launcher's memory."""
READ_BYTES = 1 << 16
COLOURS = (36, 33, 32, 35, 34, 31)
REPORTED_CODES = (1, 2, 75, 130)
"""Exit codes whose reason our programs print themselves: a failure, a user's mistake, a stop with a checkpoint saved, an
interruption."""
LINE_END = re.compile(rb"(\r?\n|\r)")
CONTROL_SEQUENCE = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


class LauncherOutput:
    """Standard output and standard error of the launcher; their lines are never mixed within a line, also on one terminal."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        colour: bool,
        logged: bool,
        job: str | None = None,
        output_from: str = "all",
        timestamps: bool = False,
        reports: bool = False,
    ) -> None:
        """`logged`: whether log files keep the lines too. `job`: the name that the user gave it, for messages. `output_from`
        and `timestamps`: as in `LaunchConfig`. `reports`: whether the program that started us reads reports."""
        self._name = f"unisono ({job})" if job else "unisono"
        self.out = Sink(selector, 1)
        self.err = self.out if os.path.sameopenfile(1, 2) else Sink(selector, 2)
        self._selector = selector
        self._colour = colour
        self._has_log_files = logged
        self._output_from = output_from
        self.timestamps = timestamps
        self._sends_reports = reports

    @property
    def failure(self) -> OSError | None:
        """The error by which lines are lost that no log file holds, so that the ranks run for nothing; None where there is none."""
        return None if self._has_log_files else self.out.error or self.err.error

    @property
    def flushed(self) -> bool:
        """Whether everything is written."""
        return self.out.empty and self.err.empty

    def say(self, text: str) -> None:
        """Local, not blocking: writes a line of the launcher itself to standard error."""
        self.err.write(f"{self._name}: {text}\n".encode())

    def report(self, line: bytes) -> None:
        """Local, not blocking: sends a report to the program that started us (`launch/control_messages.py`), if it reads
        reports."""
        if self._sends_reports:
            self.err.write(line + b"\n")

    def report_lost_output(self) -> None:
        """Local: prints that output was lost, e.g. on a full disk. A reader that left on purpose gets no message."""
        for sink, name in ((self.out, "output"), (self.err, "error")):
            if sink.error is not None and not isinstance(sink.error, BrokenPipeError):
                self.say(f"standard {name} could not be written: {sink.error.strerror}; output of the ranks was lost")

    def attach(self, rank: int, out: IO[bytes], err: IO[bytes], log: FileIO | None) -> RankOutput:
        """Local: starts to forward the output of these two pipes of a rank, until they end."""
        return RankOutput(self, self._selector, rank, out, err, log)

    def sink_of(self, rank: int) -> Sink:
        """Returns the sink of a rank's standard output: with output from rank 0 only, that of the others goes to standard error."""
        return self.err if self._output_from == "first" and rank else self.out

    def is_reported(self, code: int) -> bool:
        """Whether a rank that ended with this code has printed the reason itself, as our own commands do."""
        return self._output_from == "first" and code in REPORTED_CODES

    def goes_to_terminal(self, rank: int) -> bool:
        """Whether standard output of a rank is forwarded byte by byte to a terminal."""
        return self._output_from == "first" and not rank and columns_of(1) is not None

    def prefix(self, rank: int, fd: int) -> bytes:
        """Returns the prefix of a rank's lines on this descriptor, coloured on a terminal; empty for rank 0 if only its output is
        shown.
        """
        if self._output_from == "first" and not rank:
            return b""
        if self._colour and os.isatty(fd):
            return f"\x1b[{COLOURS[rank % len(COLOURS)]}m[{rank}]\x1b[0m ".encode()
        return f"[{rank}] ".encode()

    def drop(self) -> None:
        """Local: drops what is not written yet."""
        self.out.drop()
        self.err.drop()


class RankOutput:
    """Both outputs of one rank and its log file, which gets the lines of both in their order of arrival."""

    def __init__(
        self,
        console: LauncherOutput,
        selector: selectors.BaseSelector,
        rank: int,
        out: IO[bytes],
        err: IO[bytes],
        log: FileIO | None,
    ) -> None:
        self._console = console
        self._log = log
        logged = None if log is None else self._write_log
        sink = console.sink_of(rank)
        self._streams = (
            (TerminalStream if console.goes_to_terminal(rank) else Stream)(
                selector, out, sink, console.prefix(rank, sink.fd), logged, console.timestamps
            ),
            Stream(selector, err, console.err, console.prefix(rank, 2), logged, console.timestamps),
        )

    def drain(self) -> None:
        """Local, not blocking: reads and forwards what is in the pipes now."""
        for stream in self._streams:
            stream.drain()

    def close(self) -> None:
        """Local: forwards the last unfinished lines and stops reading."""
        for stream in self._streams:
            stream.close()
        if self._log is not None:
            self._log.close()
            self._log = None

    def _write_log(self, lines: bytes) -> None:
        """Writes lines to the log file of the rank; after an error the log ends, with a message."""
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
        """Local, not blocking: reads one piece; returns whether there may be more."""
        if self._pipe.closed:
            return False
        try:
            data = os.read(self._pipe.fileno(), READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        self._receive(data)
        return True

    def drain(self) -> None:
        """Local, not blocking: reads and forwards what is in the pipe now. Bounded, as a child of the rank may continue to
        write."""
        for _ in range(32):
            if not self.read():
                return

    def pause(self) -> None:
        """Local: stops reading the pipe, so that a rank that prints too fast has to wait. Idempotent."""
        if not self._paused and not self._pipe.closed:
            self._selector.unregister(self._pipe)
            self._paused = True

    def resume(self) -> None:
        """Local: reads the pipe again after `pause`. Idempotent."""
        if self._paused and not self._pipe.closed:
            self._selector.register(self._pipe, selectors.EVENT_READ, self.read)
            self._paused = False

    def close(self) -> None:
        """Local: forwards the last, unfinished line. Idempotent."""
        if self._pipe.closed:
            return
        self.pause()
        self._pipe.close()
        self._sink.sources.discard(self)
        self._emit_partial()

    def _receive(self, data: bytes) -> None:
        """Forwards the complete lines in the new data and keeps the unfinished rest; a rest that is too long is forwarded as a
        line.
        """
        if self._partial.endswith(b"\r"):
            self._partial.pop()
            data = b"\r" + data
        end = self._end_of_last_line(data)
        if end:
            self._emit(bytes(self._partial) + data[:end])
            self._partial.clear()
        self._partial += data[end:]
        if len(self._partial) > MAX_LINE_BYTES:
            self._emit_partial()

    def _end_of_last_line(self, data: bytes) -> int:
        """Returns the end of the last line that may be shown, also one that a progress bar will redraw. A return at the very end
        may be half of a line end."""
        return max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1

    def _emit_partial(self) -> None:
        """Forwards the unfinished line, if there is one, with a line end."""
        if self._partial:
            self._emit(bytes(self._partial) + b"\n")
            self._partial.clear()

    def _emit(self, lines: bytes) -> None:
        """Forwards lines, each with its end."""
        if self._log is not None:
            self._log(lines)
        prefix = strftime("%Y-%m-%d %H:%M:%S ").encode() + self._prefix if self._timestamps else self._prefix
        if b"\r" in lines:
            parts = LINE_END.split(lines)  # line, end, line, end ..., nothing
            pairs = zip(parts[::2], parts[1::2], strict=False)
            self._sink.write(b"".join(prefix + line + end for line, end in pairs if line or end != b"\r"))
        else:
            self._sink.write(prefix + lines[:-1].replace(b"\n", b"\n" + prefix) + b"\n")


class TerminalStream(Stream):
    """One pipe from a rank to a terminal, which gets every byte at once, so that a progress bar moves. The log file gets the
    lines as they stand in the end."""

    def _receive(self, data: bytes) -> None:
        self._sink.write_raw(data)
        super()._receive(data)
        if b"\r" in self._partial:
            del self._partial[: self._partial.rindex(b"\r")]  # what is drawn over needs no memory

    def _end_of_last_line(self, data: bytes) -> int:
        return data.rfind(b"\n") + 1

    def _emit_partial(self) -> None:
        self._sink.end_line()
        super()._emit_partial()

    def _emit(self, lines: bytes) -> None:
        if self._log is not None:
            shown = (line.rstrip(b"\r").rpartition(b"\r")[2] for line in lines[:-1].split(b"\n"))
            self._log(CONTROL_SEQUENCE.sub(b"", b"\n".join(shown)) + b"\n")


@dataclass(frozen=True)
class LogFolder:
    """One file for each rank, with the lines of all its attempts."""

    folder: Path

    @classmethod
    def make(cls, folder: Path, ranks: range) -> LogFolder:
        """Local: makes the folder with an empty file for each rank; raises OSError with the path that cannot be written."""
        folder.mkdir(parents=True, exist_ok=True)
        logs = cls(folder)
        for rank in ranks:
            logs._path_of_log(rank).write_bytes(b"")
        return logs

    def open(self, rank: int) -> FileIO:
        """Local: opens the log file of a rank, to append to it."""
        return FileIO(self._path_of_log(rank), "ab")

    def _path_of_log(self, rank: int) -> Path:
        """Returns the path of the log file of a rank."""
        return self.folder / f"rank-{rank}.log"
