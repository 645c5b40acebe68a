"""The examples in the docstrings of public names: found, and run as a user would, one after another in one process.

python -m tests.unit.docstring_examples RESULTS        # writes a line of JSON for each example; needs KERAS_BACKEND=torch
"""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
import tempfile
import textwrap
import threading
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any

import unisono as un

NUM_THREADS = 3
"""Ranks on which an example with a communicator runs a second time."""
SHOWN = re.compile(r"^(\s*)(\S.*?) +# -> (.+)$", re.MULTILINE)
"""A line that shows what its expression gives: `len(splits.train)  # -> 1258`."""
SECTION = re.compile(r"^(Example|Args|Attributes|Returns|Options):\n((?:(?:    .*)?\n)*)", re.MULTILINE)
CONSTANTS = ("ANY", "MAX", "MIN", "SUM", "__version__")
MODULES: Mapping[str, ModuleType] = {"augment": un.augment, "keras": un.keras}


def public_names() -> dict[str, Any]:
    """Every public name but constants and modules, and those of `un.augment` and `un.keras`, as users call them."""
    found = {f"un.{name}": getattr(un, name) for name in un.__all__ if name not in (*CONSTANTS, *MODULES)}
    return found | {f"un.{module}.{name}": getattr(inner, name) for module, inner in MODULES.items() for name in inner.__all__}


def public_methods() -> dict[str, Any]:
    """Public methods and properties of the classes among them, each once: those of a base under its own name."""
    found: dict[str, Any] = {}
    owners = {name: one for name, one in public_names().items() if inspect.isclass(one) and not issubclass(one, Exception)}
    for name, owner in sorted(owners.items(), key=lambda item: len(item[1].__mro__)):
        for base in (one for one in owner.__mro__ if one.__module__.startswith("unisono")):
            for method, value in vars(base).items():
                is_method = inspect.isroutine(value) or isinstance(value, property)
                if is_method and not method.startswith("_") and value not in found.values():
                    found.setdefault(f"{name}.{method}", value)
    return found


def sections(owner: Any) -> dict[str, str]:
    """The sections of a docstring by their headings, without their indentation."""
    text = f"{inspect.getdoc(owner) or ''}\n"
    return {match[1]: textwrap.dedent(match[2]).strip("\n") for match in SECTION.finditer(text)}


def examples() -> dict[str, str]:
    """Name -> its example, of those that have one."""
    found = {name: sections(one).get("Example", "") for name, one in (public_names() | public_methods()).items()}
    return {name: code for name, code in found.items() if code}


def main(results: Path) -> None:
    """Local, blocking: run all examples; the results are written as they come."""
    with results.open("w") as lines:
        for name, code in examples().items():
            began = perf_counter()
            for on_threads in (False, True) if "un.connect(" in code else (False,):
                failure = _failure(name, code, on_threads)
                if failure:
                    break
            print(json.dumps([name, perf_counter() - began, failure]), file=lines, flush=True)


def _failure(name: str, code: str, on_threads: bool) -> str:
    """Empty if the example ran and gave what it shows."""
    checked = SHOWN.sub(_as_check, code)
    with tempfile.TemporaryDirectory() as folder:
        before = Path.cwd()
        os.chdir(folder)
        try:
            body = compile(checked, f"<example of {name}>", "exec")
            if on_threads:
                _run_on_threads(body)
            else:
                exec(body, {"__name__": "__main__"})
        except BaseException:  # noqa: BLE001 - the test shows it
            ranks = f" on {NUM_THREADS} ranks" if on_threads else ""
            return f"the example of {name}{ranks}:\n{textwrap.indent(checked, '    ')}\n{traceback.format_exc()}"
        finally:
            os.chdir(before)
    return ""


def _as_check(match: re.Match[str]) -> str:
    return f"{match[1]}_given = repr(({match[2]})); assert _given == {match[3]!r}, _given"


def _run_on_threads(body: Any) -> None:
    """Local, blocking: every rank runs the example with its own names; `un.connect` gives it the communicator of its thread."""
    from unisono.testing.thread_communicator import run_threads

    of_thread: dict[int, un.Communicator] = {}

    def main_of_rank(comm: un.Communicator) -> None:
        of_thread[threading.get_ident()] = comm
        exec(body, {"__name__": "__main__"})

    vars(un)["connect"] = lambda **_: of_thread[threading.get_ident()]
    try:
        run_threads(NUM_THREADS, main_of_rank, time_limit_s=10.0)
    finally:
        del vars(un)["connect"]


def missing_args(name: str, owner: Any) -> Iterator[str]:
    """Parameters of a signature that no section of the docstring names."""
    told = sections(owner)
    lines = "\n".join(told.get(one, "") for one in ("Args", "Options"))
    known = {word for match in re.finditer(r"^([\w*, ]+):", lines, re.MULTILINE) for word in re.split(r"\W+", match[1])}
    for parameter in inspect.signature(owner).parameters if owner is not un.Op else ("value",):  # an Enum makes up its own
        if parameter != "self" and parameter not in known:
            yield f"{name}: Args does not name {parameter}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
