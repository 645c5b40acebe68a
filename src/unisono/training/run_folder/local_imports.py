"""Finds the local files that a task imports, directly or through others, from the syntax trees without running anything."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

INSTALLED = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True)
class LocalImports:
    """The local files and packages that a file imports, directly or through others."""

    files: tuple[Path, ...]
    """The files beside it or in its package, without itself, in the order of their names."""
    unreadable: tuple[Path, ...]
    """Among them those that are no valid Python, so that their own imports are not known."""
    outside: frozenset[str]
    """Top names of all other packages."""


def local_imports(file: Path) -> LocalImports:
    """Local, blocking: finds what a file imports; reads every file once. Imports whose names are made while running are not
    seen."""
    start = file.resolve()
    roots = tuple(dict.fromkeys((start.parent, _package_root(start))))
    seen: dict[Path, bool] = {}
    outside: set[str] = set()
    todo = [start]
    while todo:
        now = todo.pop()
        if now in seen:
            continue
        try:
            names = list(_imported_names(ast.parse(now.read_bytes()), now))
            seen[now] = True
        except (SyntaxError, ValueError):
            names, seen[now] = [], False
        for folder, parts in names:
            found = [path for root in ((folder,) if folder else roots) for path in _resolve(root, parts)]
            if not found and folder is None:
                outside.add(parts[0])
            todo += found
    del seen[start]
    return LocalImports(
        tuple(sorted(seen)), tuple(sorted(path for path, is_valid in seen.items() if not is_valid)), frozenset(outside)
    )


def _package_root(file: Path) -> Path:
    """The folder from which the package that holds the file is imported."""
    folder = file.parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder


def _imported_names(tree: ast.Module, file: Path) -> Iterator[tuple[Path | None, tuple[str, ...]]]:
    """Returns every imported name, as (folder of a relative import, parts of the name)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield None, tuple(alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            folder = file.parents[node.level - 1] if node.level else None
            module = tuple(node.module.split(".")) if node.module else ()
            for alias in node.names:
                yield folder, (*module, alias.name)


def _resolve(root: Path, parts: tuple[str, ...]) -> list[Path]:
    """The files that importing this name from this folder runs: packages on the way, then the module. The last part may be a
    thing inside a module."""
    found, here = [], root
    for part in parts:
        if (package := here / part / "__init__.py").is_file():
            found.append(package)
        elif (module := here / f"{part}.py").is_file():
            found.append(module)
            break
        elif not (here / part).is_dir():
            break
        here = here / part
    return [path.resolve() for path in found if not INSTALLED & set(path.parts)]
