"""Every `__init__.py` says what lives there, which packages import it and which it imports: compared with the syntax trees."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from tests.repo.test_layers import imports, sources
from tests.repo.test_map import PUBLIC_FORMS, SRC, modules, packages

MOST_IMPORTERS, MOST_IMPORTED = 6, 12
"""Which the sentence in `__init__.py` names. More of them are "many packages"."""
OF_EVERY_PACKAGE = frozenset({"errors", "events", "registry", "version"})
"""Files that every package may import; the sentence leaves them out."""


@cache
def import_pairs() -> frozenset[tuple[str, str]]:
    """Who imports whom, at use too: the packages of both modules, or the names of files that stand in none."""
    known = {str(file.relative_to(SRC).with_suffix("")) for file in modules()} | {str(one.relative_to(SRC)) for one in packages()}
    pairs = set()
    for source in sources(SRC):
        importer = str(source.path.with_suffix("")).removesuffix("__init__").rstrip("/") or "."
        for item in imports(source):
            parts = item.target.split(".")
            if parts[0] == "unisono":
                longest = next(name for n in range(len(parts), 0, -1) if (name := "/".join(parts[1:n]) or ".") in known)
                pairs.add((package_of(importer), package_of(longest)))
    return frozenset(pairs)


def package_of(module: str) -> str:
    return module if "/" not in module or (SRC / module).is_dir() else str(Path(module).parent)


def seen_from(folder: Path, package: str) -> str | None:
    """How a package names another: by its top-level package, or with a slash where it lies beside it. None: it is its own part."""
    here, there = folder.relative_to(SRC), Path(package)
    around = here.parent
    if here == there or here in there.parents:
        return None
    if around.parts and around == there:
        return around.name
    if around.parts and around in there.parents:
        return around.name if here.name == "_impl" else f"{there.relative_to(around).parts[0]}/"
    return there.parts[0] if there.parts else "unisono"


def sentence_of(folder: Path) -> str:
    """What `__init__.py` must say of the imports."""
    pairs = [(seen_from(folder, importer), seen_from(folder, imported)) for importer, imported in import_pairs()]
    importers = {importer for importer, imported in pairs if imported is None and importer}
    imported = {imported for importer, imported in pairs if importer is None and imported} - OF_EVERY_PACKAGE
    by, of = (listed(names, most) for names, most in ((importers, MOST_IMPORTERS), (imported, MOST_IMPORTED)))
    return f"Imported by {by or 'no other package'}; imports {of or 'no other package'}."


def listed(names: Iterable[str], most: int) -> str:
    *some, last = sorted(names) or [""]
    return "many packages" if len(some) >= most else f"{', '.join(some)} and {last}" if some else last


def is_described(folder: Path) -> bool:
    parts = folder.relative_to(SRC).parts
    return bool(parts) and (parts[0] not in PUBLIC_FORMS or "_impl" in parts) and "stand_in" not in parts


@pytest.mark.parametrize("folder", [one for one in packages() if is_described(one)], ids=lambda one: str(one.relative_to(SRC)))
def test_every_package_says_what_lives_there_and_how_it_is_imported(folder: Path) -> None:
    """`Imported by a, b and c; imports d and e.`, as the syntax trees say."""
    text = re.sub(r"\s+", " ", ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or "")
    assert sentence_of(folder) in text and not text.startswith("Imported by"), f"it must say: {sentence_of(folder)}"
    assert text.count("Imported by") == 1
