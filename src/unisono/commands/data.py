"""The verb `unisono data`: which data sets are known, where they can be had, whether those here are right; fetches them too."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unisono.cluster.resolve import environment
from unisono.data.catalogue import CATALOGUE, CHANGED, MISSING, RIGHT, UNKNOWN, DataSet, File, default_root, find
from unisono.data.download import download, unpack
from unisono.errors import UsageError

HELP = "list, check and fetch the known data sets"
DESCRIPTION = (
    "Says which data sets the examples use, where each can be had and under which licence, checks those here, fetches them."
)
EPILOG = """examples:
  unisono data                                  all that are known, and which are here
  unisono data get mnist                        fetch (needs internet) and check
  unisono data check mnist --root /data         are the files in /data/mnist the published ones?"""

ACTIONS = ("list", "show", "check", "get")
UNPACKED = "unpacked"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Local: the options of the verb."""
    root = default_root(environment())
    parser.add_argument("action", nargs="?", default="list", metavar="action", help="list (default), show, check or get")
    parser.add_argument("names", nargs="*", metavar="name", help="data sets; check and show without a name look at all of them")
    parser.add_argument("--root", type=Path, default=root, metavar="DIR", help=f"they lie in DIR/NAME (default {root})")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def main(args: argparse.Namespace, argv: Sequence[str] = ()) -> int:  # noqa: ARG001 - as every verb is called
    """Local, blocking: do what `args` says (action, names, root, json). 1 if a check finds something missing or wrong, else 0."""
    if args.action not in ACTIONS:
        raise UsageError(f"unisono data does not know {args.action!r}; it knows {', '.join(ACTIONS)}")
    root = Path(args.root).expanduser()
    if args.action == "list" and args.names:
        raise UsageError(f"unisono data list takes no name; received {args.names[0]!r}; use: unisono data show {args.names[0]}")
    if args.action == "get" and not args.names:
        raise UsageError("unisono data get needs the name of a data set, e.g. unisono data get mnist; unisono data lists them")
    entries = [find(name) for name in args.names] or list(CATALOGUE)
    if args.action == "get":
        for entry in entries:
            get(entry, root, quiet=args.json)
    if args.action in ("check", "get"):
        asked = [entry for entry in entries if args.names or entry.here(root) != "no"]
        return _check(asked, root, args.json)
    facts = [_facts(entry, root) for entry in entries]
    if args.json:
        print(json.dumps({"root": str(root), "data_sets": facts}, indent=2))
    else:
        print(_table(entries, root) if args.action == "list" else "\n\n".join(_text(entry, root) for entry in entries))
    return 0


def get(entry: DataSet, root: Path, quiet: bool = False) -> Path:
    """Local, blocking: fetch what is missing of a data set and unpack it; files that are right stay. The folder."""
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
            bar = _Bar(f"{entry.name}/{file.name}", shown=not quiet and sys.stderr.isatty())
            try:
                download(file.urls, folder / file.name, file.md5, bar)
            finally:
                bar.clear()
    for archive, unpacked in entry.unpack.items():
        if not (folder / unpacked).exists():
            unpack(folder / archive, folder / unpacked)
    return folder


class _Bar:
    """One line on a terminal that says how far a file is."""

    def __init__(self, what: str, shown: bool) -> None:
        self.what, self.shown, self.percent = what, shown, -1

    def __call__(self, done: int, total: int | None) -> None:
        percent = done * 100 // total if total else done >> 20
        if not self.shown or percent == self.percent:
            return
        self.percent = percent
        width = 24
        filled = done * width // total if total else 0
        far = f"[{'#' * filled}{'.' * (width - filled)}] {percent:3} % of {size_text(total)}" if total else size_text(done)
        print(f"\r\033[K{self.what} {far}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self.shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def size_text(num_bytes: int | None) -> str:
    """Pure: 9.9 MB, 1.1 kB, or 'unknown'."""
    if num_bytes is None:
        return "unknown"
    size, unit = float(num_bytes), "B"
    for larger in ("kB", "MB", "GB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"


def _check(entries: Sequence[DataSet], root: Path, as_json: bool) -> int:
    states = {entry.name: _states(entry, root) for entry in entries}
    fine = all(state in (RIGHT, UNKNOWN, UNPACKED) for found in states.values() for state in found.values())
    if as_json:
        print(json.dumps({"root": str(root), "right": fine, "data_sets": states}, indent=2))
        return 0 if fine else 1
    rows = [(name, file, state) for name, found in states.items() for file, state in found.items()]
    rows += [(entry.name, "(part of the package)", RIGHT) for entry in entries if entry.embedded]
    print(
        _columns([("data set", "file", "state"), *rows])
        if rows
        else f"no known data set in {root}; unisono data lists what there is"
    )
    if not fine:
        print(f"missing files: unisono data get NAME --root {root}; changed files: remove them first")
    return 0 if fine else 1


def _states(entry: DataSet, root: Path) -> dict[str, str]:
    folder = root / entry.name
    files = {file.name: file.state(folder) for file in entry.files}
    return files | {name: UNPACKED if (folder / name).is_dir() else MISSING for name in entry.unpack.values()}


def _facts(entry: DataSet, root: Path) -> dict[str, Any]:
    return {
        "name": entry.name,
        "what": entry.what,
        "num_samples": entry.num_samples,
        "num_bytes": entry.num_bytes,
        "licence": entry.licence,
        "page": entry.page,
        "note": entry.note,
        "embedded": entry.embedded,
        "here": entry.here(root),
        "files": [
            {"name": file.name, "num_bytes": file.num_bytes, "md5": file.md5, "urls": list(file.urls)} for file in entry.files
        ],
    }


def _table(entries: Sequence[DataSet], root: Path) -> str:
    rows = [("name", "what", "samples", "size", "licence", "here")]
    for entry in entries:
        here = "in the package" if entry.embedded else entry.here(root)
        size = "" if entry.embedded else size_text(entry.num_bytes)
        rows.append((entry.name, entry.what, entry.num_samples, size, entry.licence, here))
    return (
        f"{_columns(rows)}\n\nin {root} (--root)\n"
        "unisono data show NAME: where it can be had; get NAME: fetch it; check NAME: compare with the published checksums"
    )


def _text(entry: DataSet, root: Path) -> str:
    lines = [f"{entry.name}: {entry.what}; {entry.num_samples} samples", f"  licence  {entry.licence}", f"  page     {entry.page}"]
    lines += [f"  folder   {root / entry.name}"] if entry.files else []
    for file in entry.files:
        lines.append(f"  file     {file.name} ({size_text(file.num_bytes)}), {_checksum(file)}")
        lines += [f"           {url}" for url in file.urls]
    return "\n".join([*lines, *([f"  note     {entry.note}"] if entry.note else [])])


def _checksum(file: File) -> str:
    return f"md5 {file.md5}" if file.md5 else "no published checksum is known"


def _columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
