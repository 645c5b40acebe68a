"""The frame of every benchmark: how it ends, and what its result always says."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable, Mapping
from typing import Any

from bench.groups import GroupFailed
from bench.machine import command_line, describe_machine
from bench.progress import Progress
from bench.record import Record
from bench.rounds import Stopwatch


def guarded(main: Callable[[], None]) -> int:
    """Local, blocking: the exit code. 0: the run is complete, whatever its bounds say; 1: it failed; 130: Ctrl-C or SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what it has started ends with it either way
    try:
        main()
    except KeyboardInterrupt:
        Progress().keep("interrupted; nothing is left running, and the same command goes on after the last finished block")
        return 130
    except GroupFailed as error:
        Progress().keep(f"error: {error}")
        return 1
    return 0


def open_record(name: str, args: argparse.Namespace, settings: Mapping[str, Any], progress: Progress) -> Record:
    """Local: the record of this benchmark, which says so if it takes up an interrupted run."""
    record = Record(f"{name}-quick" if args.quick else name, settings, args.fresh)
    if record.resumed:
        progress.keep(f"{record.resumed} blocks of an interrupted run are kept (--fresh measures them again)")
    return record


def result_of(args: argparse.Namespace, record: Record, watch: Stopwatch, **more: Any) -> dict[str, Any]:
    """Local: what is written to disk: how the numbers came about, then the numbers."""
    return {
        "command": command_line(),
        "quick": args.quick,
        "machine": describe_machine(),
        "sittings": record.sittings,
        "took": str(watch),
        "settings": record.settings,
        **more,
    }
