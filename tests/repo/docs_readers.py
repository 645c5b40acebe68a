"""What is wrong with a page: verbs, options, files, links, public names, exit codes, variables that the code does not have."""

from __future__ import annotations

import ast
import inspect
import re
import signal
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from types import MappingProxyType

import unisono as un
from tests.system.documented import ROOT, Command, Page, code, commands, given
from unisono.algorithms.base import find_algorithm, known_algorithms
from unisono.algorithms.server.virtual_clock import VirtualClock
from unisono.cli import INTERRUPTED_CODE, READER_LEFT_CODE, USAGE_CODE, VERBS, parser_of
from unisono.cluster.topology import ALLREDUCES, ENGINES
from unisono.errors import STOPPED_CODE, UsageError
from unisono.metrics.find_metrics import METRICS
from unisono.model.losses.find_loss import LOSSES
from unisono.optim.curves import SCHEDULES
from unisono.start_training import TRAIN_OPTIONS
from unisono.task.options import Option, keywords_of, options_of
from unisono.task.task import Task
from unisono.tuning.study.study_options import TuneConfig

SRC = ROOT / "src" / "unisono"
PUBLIC_MODULES: Mapping[str, str] = MappingProxyType({"augment": "unisono.data.augmentations", "keras": "unisono.keras"})
PLACEHOLDERS = frozenset({"A", "E", "ALGORITHM", "NAME", "VALUE"})
OPTIONS_OF_OTHERS: Mapping[str, str] = MappingProxyType(
    {
        "--allow-run-as-root": "Open MPI",
        "--oversubscribe": "Open MPI",
        "--shutdown-timeout": "torchrun",
        "--gpu-bind": "srun",
        "--gpus-per-node": "srun",
        "--kill-on-bad-exit": "srun",
        "--begin": "sbatch",
        "--dependency": "sbatch",
        "--hold": "sbatch",
        "--no-deps": "pip",
        "--system-site-packages": "venv",
        "--only": "unisono.testing.contract",
    }
)
"""Options that stand alone between backticks and belong to another program."""
OTHER_PROGRAMS = frozenset(
    {"srun", "sbatch", "scancel", "mpirun", "torchrun", "jsrun", "horovodrun", "pip", "ssh", "make", "conda", "python"}
)
"""A span that begins with one of them is a command of theirs."""
HEADS = frozenset({"model", "data", "optimizer", "schedule", "loss", "algorithm", "simulate"})
CODES: Mapping[str, int] = MappingProxyType({"done": 0, "failed": 1, "a mistake": USAGE_CODE, "stopped": STOPPED_CODE})
KNOWN_CODES = frozenset(
    {*CODES.values(), INTERRUPTED_CODE, READER_LEFT_CODE}
    | {128 + one for one in (signal.SIGTERM, signal.SIGKILL, signal.SIGUSR1, signal.SIGINT)}
)
FILE = re.compile(r"(?<![\w./-])((?:src|tests|examples|docs|bench)/[\w./*-]*\w)")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
DOTTED = re.compile(r"\bunisono((?:\.[a-z_]\w*)+)")
VARIABLE = re.compile(r"\bUNISONO_[A-Z0-9_]*[A-Z0-9]\b")
OF_TESTS = frozenset({"UNISONO_NO_APT"})
Wrong = Iterator[str]


# ---- what the code has -----------------------------------------------------------------------------------------------


@cache
def options_of_verb(verb: str) -> frozenset[str]:
    return frozenset(parser_of(verb, import_module(f"unisono.commands.{verb}"))._option_string_actions)


@cache
def all_options() -> frozenset[str]:
    return frozenset().union(*(options_of_verb(verb) for verb in VERBS))


def own_words(words: Sequence[str]) -> list[str]:
    """Those of the verb: not those of the program that `unisono run` starts, nor those that `unisono submit` hands to sbatch."""
    command = import_module(f"unisono.commands.{words[0]}")
    return list(command.split(list(words))[0]) if hasattr(command, "split") else list(words)


def typed(words: Sequence[str]) -> list[str]:
    """Pure: as the shell gives them, with a number in the place of each of its variables."""
    return [re.sub(r"\$\w+", "1", word) for word in words]


@cache
def algorithm_options(name: str) -> Mapping[str, Option]:
    return {one.field: one for one in options_of(find_algorithm(name).Options)}


@cache
def task_fields() -> frozenset[str]:
    return frozenset(one.name for one in fields(Task))


@cache
def variables_of_the_code() -> frozenset[str]:
    return frozenset(name for file in SRC.rglob("*.py") for name in VARIABLE.findall(file.read_text())) | OF_TESTS


@cache
def packages() -> tuple[str, ...]:
    return tuple(sorted(folder.name for folder in SRC.iterdir() if (folder / "__init__.py").exists()))


# ---- what is wrong with a page ---------------------------------------------------------------------------------------


def wrong_verbs(page: Page) -> Wrong:
    for piece in code(page):
        for verb in re.findall(r"(?:^|[\s(])unisono ([a-z]+)\b(?![:(])", piece.text):
            if verb not in VERBS and not piece.text.startswith(("import ", "from ", "git ")):
                yield f"{piece.line}: there is no verb {verb}: {piece.text}"


def wrong_commands(page: Page) -> Wrong:
    """Commands in blocks are parsed as they stand."""
    for command in commands(page):
        if not command.in_block or command.verb not in VERBS or "..." in command.words:
            continue
        module = import_module(f"unisono.commands.{command.verb}")
        try:
            _, unknown = parser_of(command.verb, module).parse_known_args(typed(own_words(command.words)[1:]))
        except UsageError as error:
            yield f"{command.line}: {error}: {command.text}"
            continue
        if unknown:
            yield f"{command.line}: unisono {command.verb} does not know {unknown[0]}: {command.text}"


def wrong_options(page: Page) -> Wrong:
    found = {(one.line, one.text): one for one in commands(page)}
    for piece in code(page):
        if command := found.get((piece.line, piece.text)):
            yield from _wrong_in_command(command)
        elif not piece.in_block and piece.text.split()[0] not in OTHER_PROGRAMS:
            for word in re.findall(r"(?<!\S)--?[a-z][\w-]*", piece.text):
                if word.startswith("--") and word not in all_options() and word not in OPTIONS_OF_OTHERS:
                    yield f"{piece.line}: no verb has {word}: {piece.text}"


def _wrong_in_command(command: Command) -> Wrong:
    if command.verb not in VERBS:
        return
    try:
        words = own_words(command.words)
    except UsageError as error:
        yield f"{command.line}: {error}: {command.text}"
        return
    for word in words[1:]:
        if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in options_of_verb(command.verb):
            yield f"{command.line}: unisono {command.verb} has no {word}: {command.text}"


def wrong_values(page: Page) -> Wrong:
    """Of `--algorithm`, `--engine`, `--allreduce` and `--set`."""
    known: Mapping[str, Sequence[str]] = {
        "--algorithm": known_algorithms(),
        "--engine": ("auto", *ENGINES),
        "--allreduce": ALLREDUCES,
    }
    for piece in code(page):
        words = re.sub(r"\s#.*$", "", piece.text).split()
        for option, values in known.items():
            value = given(words, option)
            if value and re.fullmatch(r"\w+", value) and value not in PLACEHOLDERS and value not in values:
                yield f"{piece.line}: {option} has no {value}: {piece.text}"
        for word, after in pairwise(words):
            if word == "--set" and (reason := _wrong_setting(after.strip("'"), given(words, "--algorithm"))):
                yield f"{piece.line}: {reason}: {piece.text}"


def _wrong_setting(word: str, algorithm: str | None) -> str | None:
    """Pure: what is wrong with NAME=VALUE."""
    name, _, value = word.partition("=")
    head, _, field = name.partition(".")
    if not value or name in PLACEHOLDERS:
        return None if name in PLACEHOLDERS else f"--set {word} has no value"
    if not field:
        return None if head in task_fields() else f"a task has no field {head}"
    if head not in HEADS:
        return f"--set knows no {head}"
    if head == "simulate" and field not in {*(one.field for one in options_of(VirtualClock)), *PLACEHOLDERS}:
        return f"--simulate has no {field}"
    if head == "algorithm" and field not in PLACEHOLDERS:
        names = [algorithm] if algorithm in known_algorithms() else known_algorithms()
        if not any(field in algorithm_options(one) for one in names):
            return f"{' or '.join(names)} has no option {field}"
    return None


def wrong_tables(page: Page) -> Wrong:
    """The table of options of an algorithm's page has its options with their defaults; that of a task only fields of it."""
    tables = _tables(page.text)
    name = page.path.stem
    if page.path.parent.name == "algorithms" and name in known_algorithms():
        rows = next((rows for head, rows in tables if head and "--set algorithm.NAME=VALUE" in head[0]), [])
        options = algorithm_options(name)
        if {row[0] for row in rows} != set(options):
            yield f"the table has {sorted(row[0] for row in rows)}, the options are {sorted(options)}"
        for row in rows:
            default = options[row[0]].default if row[0] in options else None
            if isinstance(default, (int, float)) and not isinstance(default, bool) and float(row[1]) != default:
                yield f"{row[0]} is {row[1]}, the default is {default}"
            if isinstance(default, str) and row[1] != default:
                yield f"{row[0]} is {row[1]}, the default is {default}"
    for head, rows in tables:
        if head and "--set simulate.NAME=VALUE" in head[0]:
            expected = {one.field: one.default for one in options_of(VirtualClock)}
            if {row[0]: float(row[1]) for row in rows} != expected:
                yield f"options of --simulate are {expected}"
        if head[:2] == ["field", "meaning"] and page.path.stem == "train":
            yield from _wrong_task_table(rows)


def _wrong_task_table(rows: Sequence[Sequence[str]]) -> Wrong:
    names = {"loss": LOSSES, "metrics": METRICS, "lr, schedule, schedule_options": SCHEDULES}
    for row in rows:
        for field in row[0].split(", "):
            if field not in task_fields():
                yield f"a task has no field {field}"
        listed = re.findall(r"\b[a-z]\w+\b", row[1].partition(";")[0].partition(", with")[0])
        if row[0] in names and set(listed) - set(names[row[0]]):
            yield f"{row[0]} has no {sorted(set(listed) - set(names[row[0]]))}"


def _tables(text: str) -> list[tuple[list[str], list[list[str]]]]:
    """Pure: head and rows of every table, without backticks."""
    found: list[tuple[list[str], list[list[str]]]] = []
    is_inside = False
    for line in text.splitlines():
        cells = [cell.strip().replace("`", "") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not line.startswith("|"):
            is_inside = False
        elif not is_inside:
            found.append((cells, []))
            is_inside = True
        elif not set(line) <= set("|-: "):
            found[-1][1].append(cells)
    return found


def wrong_files(page: Page) -> Wrong:
    for line, text in enumerate(page.text.splitlines(), 1):
        for name in FILE.findall(text):
            if not list(ROOT.glob(name.replace("NAME", "*"))):
                yield f"{line}: there is no {name}"
    for piece in code(page):
        match = re.fullmatch(rf"((?:{'|'.join(packages())})/[\w/]*(?:\.py)?)", piece.text)
        if match and page.is_markdown and not list(SRC.glob(match[1].rstrip("/").replace("NAME", "*").replace("VERB", "*"))):
            yield f"{piece.line}: there is no src/unisono/{match[1]}"


def wrong_links(page: Page) -> Wrong:
    if not page.is_markdown:
        return
    for line, text in enumerate(page.text.splitlines(), 1):
        for target in LINK.findall(text):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            file = (page.path.parent / name) if name else page.path
            if not file.exists():
                yield f"{line}: the link {target} leads nowhere"
            elif anchor and anchor not in anchors(page.text if not name else file.read_text()):
                yield f"{line}: {name or 'this page'} has no heading #{anchor}"


def anchors(text: str) -> set[str]:
    """Pure: of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def wrong_names(page: Page) -> Wrong:
    """`un.NAME`, their keyword arguments, `unisono.package.module` and what is imported from it."""
    for piece in code(page):
        for name, inner in re.findall(r"\bun\.([A-Za-z]\w*)(?:\.([A-Z]\w*))?", piece.text):
            if name not in un.__all__ and name not in PLACEHOLDERS:
                yield f"{piece.line}: there is no un.{name}: {piece.text}"
            elif name in PUBLIC_MODULES and inner and inner not in _public_names(PUBLIC_MODULES[name]):
                yield f"{piece.line}: there is no un.{name}.{inner}: {piece.text}"
        for dotted in DOTTED.findall(piece.text):
            if not _is_there(f"unisono{dotted}"):
                yield f"{piece.line}: there is no unisono{dotted}: {piece.text}"
        if match := re.match(r"from (unisono[\w.]*) import ([\w, ]+)", piece.text):
            for name in match[2].replace(" ", "").split(","):
                if not _is_there(f"{match[1]}.{name}"):
                    yield f"{piece.line}: {match[1]} has no {name}: {piece.text}"
    for line, call in calls(page):
        yield from (f"{line}: {reason}" for reason in _wrong_keywords(call))


def _public_names(module: str) -> set[str]:
    (file,) = (SRC.parent / Path(*module.split("."))).glob("__init__.py")
    return set(re.findall(r"^\s+\"?(\w+)\"?,$", file.read_text(), re.MULTILINE))


@cache
def _is_there(dotted: str) -> bool:
    """Whether it is a module, or a name in the text of one: nothing heavy is imported."""
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        place = SRC.parent.joinpath(*parts[:end])
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.exists():
                rest = parts[end:]
                return not rest or bool(re.search(rf"\b{re.escape(rest[0])}\b", file.read_text()))
    return find_spec(parts[0]) is None


def calls(page: Page) -> Iterator[tuple[int, ast.Call]]:
    """Calls of `un.NAME(...)` in fenced and indented Python and in spans that are an expression."""
    whole = re.findall(r"^```python\n(.*?)^```", page.text, re.DOTALL | re.MULTILINE) if page.is_markdown else []
    whole += [dedent(block) for block in re.findall(r"(?:^(?: {4}.*)?\n)+", page.text, re.MULTILINE)] if page.is_markdown else []
    texts = [(0, text) for text in whole] + [(one.line, one.text) for one in code(page) if not one.in_block]
    for line, text in texts:
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("un."):
                yield line, node


def _wrong_keywords(call: ast.Call) -> Wrong:
    name = ast.unparse(call.func).removeprefix("un.")
    of_module = name.removeprefix("augment.")
    if name not in un.__all__ and (of_module == name or of_module not in un.augment.__all__):
        return
    known = set(inspect.signature(getattr(un, name) if of_module == name else getattr(un.augment, of_module)).parameters)
    if name == "train":
        known |= {*keywords_of(*TRAIN_OPTIONS), *task_fields()}
    if name == "tune":
        known |= set(keywords_of(TuneConfig))
    for keyword in call.keywords:
        if keyword.arg is not None and keyword.arg not in known | PLACEHOLDERS:
            yield f"un.{name} has no argument {keyword.arg}: {ast.unparse(call)}"


def wrong_codes(page: Page) -> Wrong:
    for line, text in enumerate(page.text.splitlines(), 1):
        for number in re.findall(r"(?:[Ee]xit codes?:?|exits? with|\bcode) `?(\d+)\b", text):
            if int(number) not in KNOWN_CODES:
                yield f"{line}: exit code {number} is none of {sorted(KNOWN_CODES)}: {text.strip()}"
        for number, meaning in re.findall(r"\b(\d+)(?: means:?| \||) (done|failed|a mistake|stopped)\b", text):
            if ("xit code" in text or text.startswith("|")) and int(number) != CODES[meaning]:
                yield f"{line}: {meaning} is {CODES[meaning]}, not {number}: {text.strip()}"
    for head, rows in _tables(page.text):
        if head and head[-1] == "exit code":
            for row in rows:
                if row[-1].isdecimal() and int(row[-1]) not in KNOWN_CODES:
                    yield f"exit code {row[-1]} is none of {sorted(KNOWN_CODES)}"


def wrong_variables(page: Page) -> Wrong:
    for name in sorted(set(VARIABLE.findall(page.text)) - variables_of_the_code()):
        yield f"nothing reads {name}"


def wrong_targets_and_extras(page: Page) -> Wrong:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    for piece in code(page):
        if (match := re.match(r"make ([a-z]+)", piece.text)) and match[1] not in targets:
            yield f"{piece.line}: the Makefile has no {match[1]}: {piece.text}"
        for names in re.findall(r"(?:unisono|\.)\[([a-z,]+)\]", piece.text):
            if unknown := set(names.split(",")) - extras:
                yield f"{piece.line}: pyproject.toml has no extra {', '.join(unknown)}: {piece.text}"


READERS: Mapping[str, Callable[[Page], Wrong]] = MappingProxyType(
    {
        "verbs": wrong_verbs,
        "commands": wrong_commands,
        "options": wrong_options,
        "values": wrong_values,
        "tables": wrong_tables,
        "files": wrong_files,
        "links": wrong_links,
        "names": wrong_names,
        "codes": wrong_codes,
        "variables": wrong_variables,
        "targets and extras": wrong_targets_and_extras,
    }
)
