"""How the bytes that ranks print become lines with the rank in front."""

from __future__ import annotations

import os
import selectors
from types import SimpleNamespace
from typing import Any

import pytest

from unisono.launch.output import Stream


def passed_on(*pieces: bytes) -> tuple[list[bytes], bytes, bytes]:
    """What is shown after each piece that a rank writes, at its end, and what its log holds."""
    shown: list[bytes] = []
    log: list[bytes] = []
    sink: Any = SimpleNamespace(sources=set(), write=shown.append)
    reader, writer = os.pipe()
    with selectors.DefaultSelector() as selector:
        stream = Stream(selector, os.fdopen(reader, "rb", buffering=0), sink, b"[3] ", log.append)
        steps = []
        for piece in pieces:
            os.write(writer, piece)
            stream.read()
            steps.append(b"".join(shown))
            shown.clear()
        os.close(writer)
        stream.drain()
    return steps, b"".join(shown), b"".join(log)


@pytest.mark.parametrize(
    ("pieces", "steps", "end"),
    [
        ([b"one\ntwo", b" words\n"], [b"[3] one\n", b"[3] two words\n"], b""),
        ([b"one\n\ntwo"], [b"[3] one\n[3] \n"], b"[3] two\n"),
        # A progress bar is seen while it moves, each time with the rank in front; what was drawn first is nothing.
        ([b"\r 0%", b"\r20%", b"\r40%\r60%", b"\n"], [b"", b"[3]  0%\r", b"[3] 20%\r[3] 40%\r", b"[3] 60%\n"], b""),
        ([b"20%\r", b"40%\r"], [b"", b"[3] 20%\r"], b"[3] 40%\r\n"),
        # Other line ends stay whole, wherever they are cut.
        ([b"one\r\ntwo\r", b"\nthree\r\n"], [b"[3] one\r\n", b"[3] two\r\n[3] three\r\n"], b""),
    ],
)
def test_lines_are_passed_on_whole_and_soon(pieces: list[bytes], steps: list[bytes], end: bytes) -> None:
    found_steps, found_end, log = passed_on(*pieces)
    assert (found_steps, found_end) == (steps, end)
    printed = b"".join(pieces)
    assert log == printed if printed.endswith(b"\n") else log == printed + b"\n", "it holds what was printed"
