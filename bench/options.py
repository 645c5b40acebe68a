"""Options that all benchmarks have: where results go, a quick look, a fresh start."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.groups import ROOT
from bench.sizes import parse_size


def parser_of(name: str, about: str | None) -> argparse.ArgumentParser:
    """Local: the options of `python -m bench.NAME`, whose help is the docstring of that module."""
    about = f"{about}\nAn interrupted run is resumed by the same command. --page-only writes the page again from the raw data."
    return argparse.ArgumentParser(
        f"python -m bench.{name}", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def add_choice(
    parser: argparse.ArgumentParser, option: str, known: Sequence[str], separator: str = ",", needed: Sequence[str] = ()
) -> None:
    """Local: an option that takes some of these names (default all), of which some must be among them."""
    kind = some_of(known, separator, needed)
    parser.add_argument(option, type=kind, default=list(known), metavar=f"NAME{separator}NAME", help=f"{separator} ".join(known))


def parse(parser: argparse.ArgumentParser, needs_mnist: bool = False, **quick: str) -> argparse.Namespace:
    """Local: add the common options and read the command line. `quick`: defaults that other options have with `--quick`."""
    if needs_mnist:
        parser.add_argument("--mnist", type=Path, metavar="DIR", help="the folder with the four files (unisono data get mnist)")
    parser.add_argument("--quick", action="store_true", help="few calls: shows that it works, measures nothing")
    parser.add_argument("--fresh", action="store_true", help="forget what an interrupted run has measured")
    parser.add_argument("--page-only", action="store_true", help="measure nothing; write page and picture again from the raw data")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="for the results (default docs/results; with --quick runs/bench)"
    )
    args = parser.parse_args()
    if args.quick and quick:
        parser.set_defaults(**quick)
        args = parser.parse_args()
    if needs_mnist and args.mnist is None and not args.page_only:
        parser.error("--mnist DIR is needed: the folder with the four files of MNIST (unisono data get mnist)")
    args.out = args.out or (ROOT / "runs" / "bench" if args.quick else ROOT / "docs" / "results")
    return args


def counts(text: str, least: int = 2) -> list[int]:
    """Local: numbers of ranks, hosts, workers or threads."""
    found = [int(part) if part.isdigit() else 0 for part in text.split(",")]
    if min(found) < least:
        raise argparse.ArgumentTypeError(f"must be numbers from {least} on with commas between them, e.g. 2,4; received {text!r}")
    return found


def sizes(text: str) -> list[int]:
    """Local: numbers of bytes."""
    try:
        return [parse_size(size) for size in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def some_of(known: Sequence[str], separator: str, needed: Sequence[str] = ()) -> Callable[[str], list[str]]:
    """Local: reads a choice of names, of which some must be among it."""

    def read(text: str) -> list[str]:
        asked = [part.strip() for part in text.split(separator)]
        if not set(needed) <= set(asked) <= set(known):
            with_needed = f"{' and '.join(needed)} and any others of " if needed else "some of "
            raise argparse.ArgumentTypeError(f"names {with_needed}{f'{separator} '.join(known)}; received {text!r}")
        return asked

    return read
