"""`unisono data`: lists the known data sets, checks the files here, and downloads them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from unisono.cluster.resolve import environment
from unisono.cluster.terminal import terminal
from unisono.commands.text_columns import in_columns
from unisono.data.catalogue import CATALOGUE, CHANGED, MISSING, RIGHT, ROOT_VARIABLE, UNKNOWN, DataSet, File, default_root, find
from unisono.data.download import Progress, download, unpack
from unisono.errors import UsageError
from unisono.observe.bar import Bar

DESCRIPTION = """Lists the data sets that the examples use, with their licences and addresses; checks the files here, and
fetches missing ones."""
EPILOG = """examples:
  unisono data                                  all known data sets, and which of them are here
  unisono data get mnist                        fetch (needs internet) and check
  unisono data check mnist --root /data         are the files in /data/mnist the published ones?"""

ACTIONS = ("list", "show", "check", "get")
UNPACKED = "unpacked"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Local: adds the options of the verb."""
    parser.add_argument("action", nargs="?", default="list", metavar="action", help="list (default), show, check or get")
    parser.add_argument("names", nargs="*", metavar="name", help="data sets (default for check and show: all)")
    parser.add_argument(
        "--root",
        type=Path,
        metavar="DIR",
        help=f"folder of the data sets, each in DIR/NAME (default ${ROOT_VARIABLE}, else ~/.cache/unisono/data)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def main(args: argparse.Namespace, argv: Sequence[str] = ()) -> int:  # noqa: ARG001 - as every verb is called
    """Local, blocking: lists, checks or downloads data sets. Returns 1 if a check finds something missing or wrong, else 0."""
    if args.action not in ACTIONS:
        raise UsageError(f"unisono data has no action {args.action!r}; use {', '.join(ACTIONS)}")
    root = args.root.expanduser() if args.root is not None else default_root(environment())
    if args.action == "list" and args.names:
        raise UsageError(f"unisono data list takes no name; received {args.names[0]!r}; use: unisono data show {args.names[0]}")
    if args.action == "get" and not args.names:
        raise UsageError("unisono data get needs the name of a data set, e.g. unisono data get mnist; unisono data lists them")
    entries = [find(name) for name in args.names] or list(CATALOGUE)
    if args.action == "get":
        for entry in entries:
            get(entry, root, quiet=args.json)
    if args.action in ("check", "get"):
        asked = [entry for entry in entries if args.names or entry.download_state(root) != "no"]
        return _check(asked, root, args.json)
    facts = [_facts(entry, root) for entry in entries]
    if args.json:
        print(json.dumps({"root": str(root), "data_sets": facts}, indent=2))
    else:
        print(_table(entries, root) if args.action == "list" else "\n\n".join(_text(entry, root) for entry in entries))
    return 0


def get(entry: DataSet, root: Path, quiet: bool = False) -> Path:
    """Local, blocking: downloads and unpacks what is missing of a data set; correct files stay. Returns its folder."""
    folder = root / entry.name
    for file in entry.files:
        state = file.state(folder)
        if state == CHANGED:
            raise UsageError(
                f"{folder / file.name} is there but is not the published file (its md5 differs); remove it and get it again"
            )
        if state == MISSING:
            if not file.urls:
                raise UsageError(f"{entry.name} cannot be fetched by a program; {entry.note} {folder} (page: {entry.page})")
            screen = terminal(2)
            bar = Bar(sys.stderr, None if quiet else screen.columns, screen.colour)
            try:
                download(file.urls, folder / file.name, file.md5, _progress_on(bar, f"{entry.name}/{file.name}"))
            finally:
                bar.close()
    for archive, unpacked in entry.unpack.items():
        if not (folder / unpacked).exists():
            unpack(folder / archive, folder / unpacked)
    return folder


def _progress_on(bar: Bar, what: str) -> Progress:
    """Returns a function of (bytes done, total) that draws the progress of `what` on a bar."""

    def draw(done: int, total: int | None) -> None:
        if bar.is_due(perf_counter()):
            share = done / total if total else None
            bar.draw(what, share, {"far": size_text(done) if share is None else f"{share:4.0%} of {size_text(total)}"})

    return draw


def size_text(num_bytes: int | None) -> str:
    """Pure: a size in words: 9.9 MB, 1.1 kB, or 'unknown'."""
    if num_bytes is None:
        return "unknown"
    size, unit = float(num_bytes), "B"
    for larger in ("kB", "MB", "GB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"


def _check(entries: Sequence[DataSet], root: Path, as_json: bool) -> int:
    """Prints the state of every file of these data sets; returns 0 if none is missing or wrong, else 1."""
    states = {entry.name: _states(entry, root) for entry in entries}
    fine = all(state in (RIGHT, UNKNOWN, UNPACKED) for found in states.values() for state in found.values())
    if as_json:
        print(json.dumps({"root": str(root), "right": fine, "data_sets": states}, indent=2))
        return 0 if fine else 1
    rows = [(name, file, state) for name, found in states.items() for file, state in found.items()]
    rows += [(entry.name, "(part of the package)", RIGHT) for entry in entries if entry.embedded]
    print(
        in_columns([("data set", "file", "state"), *rows], left=range(3))
        if rows
        else f"no known data set is in {root}; to list all data sets: unisono data"
    )
    if not fine:
        print(f"to fetch missing files: unisono data get NAME --root {root}; remove changed files first")
    return 0 if fine else 1


def _states(entry: DataSet, root: Path) -> dict[str, str]:
    """Returns the state of each file and unpacked folder of a data set, by name."""
    folder = root / entry.name
    files = {file.name: file.state(folder) for file in entry.files}
    return files | {name: UNPACKED if (folder / name).is_dir() else MISSING for name in entry.unpack.values()}


def _facts(entry: DataSet, root: Path) -> dict[str, Any]:
    """Returns all that is known of a data set, for --json."""
    return {
        "name": entry.name,
        "what": entry.what,
        "num_samples": entry.num_samples,
        "num_bytes": entry.num_bytes,
        "licence": entry.licence,
        "page": entry.page,
        "note": entry.note,
        "embedded": entry.embedded,
        "here": entry.download_state(root),
        "files": [
            {"name": file.name, "num_bytes": file.num_bytes, "md5": file.md5, "urls": list(file.urls)} for file in entry.files
        ],
    }


def _table(entries: Sequence[DataSet], root: Path) -> str:
    """Returns the table of the data sets, with a hint on the other commands."""
    rows = [("name", "what", "samples", "size", "licence", "here")]
    for entry in entries:
        here = "in the package" if entry.embedded else entry.download_state(root)
        size = "" if entry.embedded else size_text(entry.num_bytes)
        rows.append((entry.name, entry.what, entry.num_samples, size, entry.licence, here))
    return (
        f"{in_columns(rows, left=range(6))}\n\nin {root} (--root)\n"
        "unisono data show NAME: where to get it; get NAME: fetch it; check NAME: compare with the published checksums"
    )


def _text(entry: DataSet, root: Path) -> str:
    """Returns the description of one data set: licence, page, folder, files, note."""
    lines = [f"{entry.name}: {entry.what}; {entry.num_samples} samples", f"  licence  {entry.licence}", f"  page     {entry.page}"]
    lines += [f"  folder   {root / entry.name}"] if entry.files else []
    for file in entry.files:
        lines.append(f"  file     {file.name} ({size_text(file.num_bytes)}), {_checksum(file)}")
        lines += [f"           {url}" for url in file.urls]
    return "\n".join([*lines, *([f"  note     {entry.note}"] if entry.note else [])])


def _checksum(file: File) -> str:
    """Returns the checksum of a file in words."""
    return f"md5 {file.md5}" if file.md5 else "no published checksum is known"
