"""The frame of every benchmark: its options, what it has measured so far, what its result always says, and how it ends."""

from __future__ import annotations

import argparse
import json
import signal
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from bench.groups import GroupFailed
from bench.machine import command_line, describe_machine
from bench.page import Page
from bench.progress import Progress
from bench.record import Record, write_json
from bench.rounds import Stopwatch


def guarded(main: Callable[[], int | None]) -> int:
    """Local, blocking: the exit code. 0: the run is complete, whatever its bounds say; 1: it failed; 130: Ctrl-C or SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what it has started ends with it either way
    try:
        return main() or 0
    except KeyboardInterrupt:
        Progress().keep("interrupted; nothing is left running; run the same command to resume after the last finished block")
        return 130
    except GroupFailed as error:
        Progress().keep(f"error: {error}")
        return 1


PageOf = Callable[[Any], Page]
"""Given the raw data."""


class Measurement:
    """One benchmark, from its command line to its page. Local."""

    def __init__(self, name: str, args: argparse.Namespace, page_of: PageOf) -> None:
        self.progress, self.watch = Progress(), Stopwatch()
        self._name, self._args, self._page_of = name, args, page_of
        self._raw = args.out / f"{name}.json"

    def record(self, settings: Mapping[str, Any], part: str = "") -> Record:
        """Local: what an interrupted run with the same settings has measured, which is said; otherwise an empty record."""
        parts = [self._name, *filter(None, [part]), *(["quick"] if self._args.quick else [])]
        self._record = Record("-".join(parts), settings, self._args.fresh, self.progress)
        return self._record

    def publish(self) -> str:
        """Local: write the page from the raw data; gives answers, tables and bounds as text."""
        return self._page_of(json.loads(self._raw.read_text())).publish(self._name, self._args.out)

    def write(self, part: str = "", machine: Mapping[str, str] = MappingProxyType({}), **more: Any) -> None:
        """Local: write raw data. A part replaces what the file has of it, and leaves the other parts as they are."""
        args, command = self._args, command_line().replace(f" --out {self._args.out}", "")
        for folder in filter(None, (getattr(args, name, None) for name in ("mnist", "data"))):
            command = command.replace(str(folder), "DIR")
        result = {
            "command": command,
            "quick": args.quick,
            "machine": {**describe_machine(), **machine},
            "sittings": self._record.sittings,
            "took": str(self.watch),
            "settings": self._record.settings,
            **more,
        }
        if part:
            result = {**(json.loads(self._raw.read_text()) if self._raw.exists() else {}), part: result}
        write_json(self._raw, result)

    def finish(self, part: str = "", machine: Mapping[str, str] = MappingProxyType({}), **more: Any) -> None:
        """Local: write raw data and page, and forget what could be resumed."""
        self.write(part, machine, **more)
        print(self.publish())
        self._record.finish()
        self.progress.keep(f"written to {self._args.out}/{self._name}.md after {self.watch}")


def begin(name: str, args: argparse.Namespace, page_of: PageOf) -> Measurement:
    """Local: with `--page-only` the page is written from the raw data, and the program ends."""
    measurement = Measurement(name, args, page_of)
    if args.page_only:
        print(measurement.publish())
        raise SystemExit(0)
    return measurement
