"""The command `unisono` and its verbs. Nothing heavy is imported before a verb needs it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import NoReturn

from unisono.errors import PeerLost, ReportedElsewhere, TrainingFailed, UsageError, did_you_mean, unknown_name
from unisono.registry import load
from unisono.version import __version__

USAGE_CODE = 2
INTERRUPTED_CODE = 130
READER_LEFT_CODE = 141
"""The exit code of a program that SIGPIPE ended (`| head`)."""

VERBS: Mapping[str, str] = {
    "train": "train a task file on any number of workers",
    "tune": "search for the best settings of a task, many trials at a time",
    "join": "add a worker to a run that was started with --elastic",
    "submit": "train under SLURM, in as many jobs as it takes",
    "run": "start a program as several connected processes",
    "horovodrun": "start a program written for Horovod, unchanged",
    "status": "show the progress of runs, and what each of their jobs did",
    "evaluate": "evaluate a trained model on a part of its data",
    "apply": "apply trained models to inputs and write their predictions",
    "compare": "rank runs that were evaluated on the same samples, with confidence intervals",
    "verify": "train a run again with another number of workers, and compare every bit",
    "data": "list, check and fetch the known data sets",
    "doctor": "check this machine and job for common problems, and name the remedies",
}
"""Verb -> its line in `unisono --help`. The file `commands/VERB.py` does it and is loaded when it is used."""


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are `UsageError`, so that all of them look alike."""

    def error(self, message: str) -> NoReturn:
        """Raises a `UsageError` with a hint on --help; the parser itself would exit."""
        raise UsageError(f"{message}; see {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Local, blocking: executes a command line and returns the exit code. A user's mistake is one line and code 2, a lost rank or a
    failed training one line and 1, Ctrl-C 130."""
    try:
        code = _dispatch(list(sys.argv[1:] if argv is None else argv))
        if sys.stdout is not None:  # it was closed before we started
            sys.stdout.flush()  # where we can still say what becomes of it
        return code
    except UsageError as error:
        print(f"unisono: error: {error}", file=sys.stderr)
        return USAGE_CODE
    except (PeerLost, TrainingFailed) as error:
        print(f"unisono: error: {error}", file=sys.stderr)
        return 1
    except ReportedElsewhere as told:
        return told.code
    except KeyboardInterrupt:
        return INTERRUPTED_CODE
    except BrokenPipeError:
        _write_nowhere()
        return READER_LEFT_CODE


def _write_nowhere() -> None:
    """Redirects the output to nowhere, so that the buffers do not fail once more when the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for fd in (1, 2):
        os.dup2(nowhere, fd)
    os.close(nowhere)


def _dispatch(argv: list[str]) -> int:
    """Runs the command of the first argument; returns its exit code."""
    if not argv or argv[0] not in VERBS:
        return _without_verb(argv)
    verb = argv[0]
    command = load("unisono.commands", verb, VERBS, "verb")
    ours = command.split(argv)[0] if hasattr(command, "split") else argv
    try:
        parser = parser_of(verb, command)
        args, unknown = parser.parse_known_args(ours[1:])
    except SystemExit as done:  # --help
        return int(done.code or 0)
    if unknown:
        raise _unknown_word(unknown[0], parser)
    return int(command.main(args, argv))


def _unknown_word(word: str, parser: argparse.ArgumentParser) -> UsageError:
    """Pure: the error for a word that a parser does not know: the nearest of its options, where it may be one."""
    option = word.partition("=")[0]
    known = [flag for one in parser._actions if one.help != argparse.SUPPRESS for flag in one.option_strings]
    see = f"see {parser.prog} --help"
    hint = did_you_mean(option, known, see) if word.startswith("-") else see
    return UsageError(f"{parser.prog} does not know {option if hint != see else word!r}; {hint}")


def parser_of(verb: str, command: ModuleType) -> argparse.ArgumentParser:
    """Local: makes the argument parser of one verb."""
    parser = _Parser(
        prog=f"unisono {verb}",
        description=command.DESCRIPTION,
        epilog=command.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_arguments(parser)
    return parser


def _without_verb(argv: list[str]) -> int:
    """Handles a command line without a verb: --help, --version, or a mistake; returns the exit code."""
    if argv and not argv[0].startswith("-"):
        raise unknown_name("verb", argv[0], VERBS)
    parser = _Parser(
        prog="unisono",
        description="Trains, tunes, measures and applies neural networks on many workers.",
        epilog="examples:\n"
        "  unisono train task.py -n 4               train a task on four workers of this machine\n"
        "  unisono submit task.py --time 00:30:00   train a task under SLURM, in as many jobs as it takes\n"
        "  unisono run -n 4 train.py --epochs 3     four processes of a program on this machine\n"
        "  unisono horovodrun -np 4 python train.py  a program written for Horovod, unchanged\n"
        "  unisono doctor                           common problems of this machine, with remedies\n"
        "  unisono run --help                       all options of one verb, with examples",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"unisono {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="verb", title="verbs")
    for name, line in VERBS.items():
        verbs.add_parser(name, help=line)
    try:
        _, unknown = parser.parse_known_args(argv)
    except SystemExit as done:  # --help and --version
        return int(done.code or 0)
    if unknown:
        raise _unknown_word(unknown[0], parser)
    parser.print_help()
    return 0


if __name__ == "__main__":
    sys.exit(main())
