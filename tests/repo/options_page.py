"""Writes docs/reference/options.md from the options themselves: `python -m tests.repo.options_page`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path

from unisono.algorithms.base import find_algorithm, known_algorithms
from unisono.algorithms.server.virtual_clock import VirtualClock
from unisono.cli import VERBS, parser_of
from unisono.commands.submit import JobOptions
from unisono.launch.launch import LaunchConfig
from unisono.launch.worker_options import WorkerOptions
from unisono.predict.predict_options import ApplyConfig, EvaluateConfig
from unisono.start_training import TRAIN_OPTIONS
from unisono.task.options import Option, keywords_of, options_of
from unisono.task.task import Task
from unisono.tuning.study.study_options import TaskTrials, TuneConfig

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "options.md"
HEAD = """# Options

Written by `python -m tests.repo.options_page` from the options themselves; a test compares it with them.

Options of `unisono train` are keywords of `un.train`, and those of `unisono tune` are keywords of `un.tune`, as the column
*Python* says: `--log-every 10` is `log_every=10`. Both are checked alike.
"""
OWNERS: Mapping[str, tuple[type, ...]] = {
    "train": TRAIN_OPTIONS,
    "tune": (TuneConfig, TaskTrials, Task),
    "run": (LaunchConfig,),
    "submit": (JobOptions,),
    "evaluate": (EvaluateConfig, WorkerOptions),
    "apply": (ApplyConfig, WorkerOptions),
}
"""Verb -> the dataclasses whose fields are its options."""
KEYWORDS: Mapping[str, Mapping[str, str]] = {
    verb: {**{name: f"`{name}`" for name in keywords_of(*owners)}, "quiet": "`show=False`"}
    for verb, owners in (("train", TRAIN_OPTIONS), ("tune", (TuneConfig,)))
}
"""Verb with a function in Python -> what its options are called there."""
ELSEWHERE: Mapping[str, str] = {
    "horovodrun": "Its flags are on [a page of their own](../how-to/horovod-flags.md).",
    "submit": "All options of `unisono train`, and:",
}


def page() -> str:
    """Local: the text that the page must have."""
    return "\n".join([HEAD, *(line for verb in VERBS for line in of_verb(verb)), *of_settings(), *of_algorithms()])


def of_verb(verb: str) -> Iterator[str]:
    """One section for a verb, one table for each of its headings."""
    command = import_module(f"unisono.commands.{verb}")
    yield f"## unisono {verb}\n\n{VERBS[verb][0].upper()}{VERBS[verb][1:]}. {ELSEWHERE.get(verb, '')}".rstrip() + "\n"
    if verb == "horovodrun":
        return
    known: dict[str, Option] = {}
    for one in (one for owner in OWNERS.get(verb, ()) for one in options_of(owner)):
        known.setdefault(one.name, one)
    of_train = {"task", *(one.name for owner in TRAIN_OPTIONS for one in options_of(owner))} if verb == "submit" else set()
    tables: dict[str, list[Sequence[str]]] = {}
    for group in parser_of(verb, command)._action_groups:
        title = "" if group.title in ("positional arguments", "options") else f"**{group.title}**\n"
        for action in group._group_actions:
            if action.dest in {"help", *of_train} or action.help == argparse.SUPPRESS:
                continue
            python = () if verb not in KEYWORDS else (KEYWORDS[verb].get(action.dest, ""),)
            row = (f"`{_typed(action)}`", *python, _rule(known.get(action.dest)), _text(action.help or ""))
            tables.setdefault(title, []).append(row)
    for title, rows in tables.items():
        head = ("option", *(("Python",) if verb in KEYWORDS else ()), "must be", "meaning")
        yield "\n".join((*([title] if title else []), *_table(head, rows), ""))


def of_settings() -> Iterator[str]:
    """What a task says, and `--set NAME=VALUE` and a keyword of `un.train` change, without an option of its own."""
    yield "## --set NAME=VALUE\n\nFields of a task without an option of their own; in Python also `un.train(task, NAME=VALUE)`.\n"
    rows = [(f"`{one.field}`", _rule(one), _text(one.help)) for one in options_of(Task) if one.flag is None]
    yield "\n".join((*_table(("NAME", "must be", "meaning"), rows), ""))


def of_algorithms() -> Iterator[str]:
    """`--set algorithm.NAME=VALUE` of each algorithm, and `--set simulate.NAME=VALUE`."""
    yield "## --set algorithm.NAME=VALUE\n"
    for name in known_algorithms():
        found = list(options_of(find_algorithm(name).Options))
        if found:
            yield "\n".join((f"**--algorithm {name}**\n", *_of_dataclass("algorithm", found), ""))
    yield "## --set simulate.NAME=VALUE\n\nOf `--simulate N`: virtual seconds.\n"
    yield "\n".join((*_of_dataclass("simulate", list(options_of(VirtualClock))), ""))


def _of_dataclass(head: str, found: Sequence[Option]) -> Iterator[str]:
    rows = [(f"`{head}.{one.field}`", _rule(one), _text(one.help_line())) for one in found]
    return _table(("NAME", "must be", "meaning"), rows)


def _rule(one: Option | None) -> str:
    """Only what --help does not say already."""
    return "" if one is None or one.convert is not None or one.kind in ("bool", "str") else one.rule


def _typed(action: argparse.Action) -> str:
    values = action.metavar if isinstance(action.metavar, tuple) else () if action.nargs == 0 else (action.metavar or action.dest,)
    return " ".join((*action.option_strings[:1], *values))


def _text(help_text: str) -> str:
    return help_text.replace("%%", "%").replace("|", "\\|")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for cells in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page())
