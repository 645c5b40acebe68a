"""The command of a rank: a Python script, a module or an executable, found before anything starts."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from unisono.errors import UsageError


def command(program: Sequence[str]) -> tuple[str, ...]:
    """Local: returns the arguments to execute for the program that the user typed. Python programs run with our own interpreter."""
    if not program:
        raise UsageError("no program was given; write it after the options: unisono run -n 4 train.py --its-own-options")
    name, *rest = program
    if name == "-m":
        if not rest:
            raise UsageError("-m needs the name of a module: unisono run -n 4 -m package.module")
        _check_module(rest[0])
        return (sys.executable, "-m", *rest)
    path = Path(name)
    if path.is_file():
        if path.suffix == ".py" or (not os.access(path, os.X_OK) and _has_python_line(path)):
            return (sys.executable, name, *rest)
        if os.sep in name and not os.access(path, os.X_OK):
            raise UsageError(f"program {name!r} is not executable; allow it (chmod +x {name}) or name its interpreter first")
    found = shutil.which(name)
    if found is None:
        raise UsageError(f"program {name!r} {_why_missing(name, path)}")
    return (found, *rest)


def _why_missing(name: str, path: Path) -> str:
    """Returns why the program that the user typed was not found, with the remedy, for messages."""
    if path.is_dir():
        return "is a folder; give a script, a module (-m) or an executable"
    if path.is_file():
        return f"is not on PATH; to run the file in this folder write ./{name}"
    if os.sep in name or path.suffix == ".py":
        return f"does not exist (from {Path.cwd()}); check the path"
    return "was not found on PATH; check the name, or load the module or environment that has it"


def _check_module(name: str) -> None:
    """Raises `UsageError` if the top package of a module (-m) is not installed."""
    # Only the top package: looking for what is inside would import it here.
    top = name.partition(".")[0]
    if importlib.util.find_spec(top) is None and PathFinder.find_spec(top, [str(Path.cwd())]) is None:
        raise UsageError(f"module {name!r} (-m) was not found by {sys.executable}; install it or check the name")


def _has_python_line(path: Path) -> bool:
    """Whether the file begins with a #! line that names Python."""
    with path.open("rb") as file:
        first = file.readline(200)
    return first.startswith(b"#!") and b"python" in first
