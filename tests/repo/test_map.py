"""The map is true: packages, names of files, sizes, and the words that newcomers search for."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "unisono"

MOST_FILES = 40
MOST_LINES = 350
MOST_LONG_FILES = 8
LONG_FILES = MappingProxyType(
    {
        "algorithms/server/service.py": "one state machine: what the server does with each call",
        "comm/base.py": "the whole interface of a communicator, most of it contract",
        "horovod/_impl/elastic/elastic_job.py": "one state machine: workers that come, go and die",
        "model/torch/parameters.py": "one idea, flat vectors with views, whose parts share every invariant",
        "training/server/server_trainer.py": "both roles of one training",
        "tuning/workers/coordinator.py": "one state machine: trials, blocks and results",
    }
)
"""Files over 350 lines, each with its reason."""

SHARED_NAMES = MappingProxyType(
    {
        "base": "the interface of a package",
        "run": "the composition root, and the verb",
        "module": "the same part of each framework's front end",
        "body": "the same part of each framework's front end",
        **dict.fromkeys(
            (
                *("blocking_calls", "compression", "distributed_optimizer", "elastic_state", "gradient_transport"),
                *("object_exchange", "old_names", "operations", "replicas", "sync_batch_norm"),
            ),
            "the same part of Horovod's interface for torch, tensorflow or keras, in the folder of that name",
        ),
    }
)
"""Names that several modules may have."""

TESTS_OF_OTHERS = frozenset({"bench", "examples", "programs"})
"""Folders of tests/unit for what is not in src."""
TESTS_ELSEWHERE = MappingProxyType(
    {
        "horovod/launching/test_horovodrun.py": "the command as a whole; its parts are in launching/",
    }
)
"""Tests that are not in the folder of the module that they are named after, each with its reason."""

PUBLIC_FORMS = ("horovod",)
"""Packages whose inner names are those of another project, but for `_impl`: programs import them by path."""

OLD_WORDS = (
    *("goes_on", "go_on", "go_on_from", "told_to_stop", "looked_at", "LOOKING", "AlreadyTold", "wishes_of", "check_wishes"),
    *("Nursery", "nursery", "Mortality", "lineage", "Estranged", "Walker", "DOOR", "Voice", "MpiWishes", "Seat", "Roster"),
    *("Changed", "Asked", "Assembled", "Steering", "InOrder", "Outgoing", "take_complaint", "take_answers", "made_anew"),
    *("is_of_consequence", "epoch_is_enough", "only_we_know", "alone_though", "begins_anew", "tell_rest", "taken_apart"),
)
"""Identifiers that were renamed to words of the field."""

OLD_PHRASES = ("goes on with", "gone on", "earlier life", "read by nobody", "told to stop")


def packages() -> list[Path]:
    return sorted(file.parent for file in SRC.rglob("__init__.py"))


def modules() -> list[Path]:
    return sorted(file for file in SRC.rglob("*.py") if file.name != "__init__.py")


# ---- packages --------------------------------------------------------------------------------------------------------


def test_the_map_lists_exactly_the_packages_that_exist() -> None:
    listed = set(re.findall(r"^\| `([a-z_/]+)/`", (ROOT / "docs" / "concepts.md").read_text(), re.M))
    there = {str(folder.relative_to(SRC)) for folder in packages() if folder != SRC and len(folder.relative_to(SRC).parts) == 1}
    assert listed == there


def test_no_package_is_a_heap() -> None:
    counts = {str(folder.relative_to(SRC)): len(list(folder.glob("*.py"))) for folder in packages()}
    assert {name: count for name, count in counts.items() if count > MOST_FILES} == {}


# ---- files -----------------------------------------------------------------------------------------------------------


def test_a_module_is_known_by_its_name_alone() -> None:
    named: dict[str, list[str]] = defaultdict(list)
    for file in modules():
        where = file.relative_to(SRC)
        if (where.parts[0] not in PUBLIC_FORMS or "_impl" in where.parts) and not where.stem.startswith("on_"):
            named[where.stem].append(str(where))
    repeated = {name: files for name, files in named.items() if len(files) > 1 and name not in SHARED_NAMES}
    assert repeated == {}


def test_long_files_have_a_reason() -> None:
    long = {str(file.relative_to(SRC)) for file in modules() if len(file.read_text().splitlines()) > MOST_LINES}
    assert long == set(LONG_FILES)
    assert len(long) <= MOST_LONG_FILES


def mirror_of(folder: Path) -> Path:
    """The folder of tests for a folder of src, both relative. The tests of a way in leave out the folder `_impl`."""
    return Path(*(part for part in folder.parts if part != "_impl"))


def test_unit_tests_mirror_the_packages() -> None:
    unit = ROOT / "tests" / "unit"
    mirrors = {mirror_of(folder.relative_to(SRC)) for folder in packages()}
    homes: dict[str, set[Path]] = defaultdict(set)
    for module in modules():
        homes[module.stem].add(mirror_of(module.parent.relative_to(SRC)))
    strange = []
    for file in sorted(unit.rglob("test_*.py")):
        folder, tested = file.parent.relative_to(unit), file.stem.removeprefix("test_")
        if TESTS_OF_OTHERS & set(folder.parts) or str(file.relative_to(unit)) in TESTS_ELSEWHERE:
            continue
        if folder not in mirrors:
            strange.append(f"{folder}/ is no package")
        elif tested in homes and tested != folder.name and folder not in homes[tested]:
            strange.append(f"{file.relative_to(unit)} belongs in {' or '.join(sorted(map(str, homes[tested])))}/")
    assert strange == []


# ---- words -----------------------------------------------------------------------------------------------------------


def identifiers(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.alias):
            yield node.name.split(".")[-1]


def sources() -> list[Path]:
    return sorted(file for folder in ("src", "tests", "bench", "examples") for file in (ROOT / folder).rglob("*.py"))


def test_renamed_identifiers_are_gone() -> None:
    found = [
        f"{file.relative_to(ROOT)}: {name}"
        for file in sources()
        for name in sorted(set(identifiers(ast.parse(file.read_text()))) & set(OLD_WORDS))
    ]
    assert found == []


def test_old_phrases_are_gone() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *SRC.rglob("*.html")]
    found = [
        f"{file.relative_to(ROOT)}: {phrase}"
        for file in (*sources(), *pages)
        if file != Path(__file__) and "old_files" not in file.parts
        for phrase in OLD_PHRASES
        if phrase in re.sub(r"\s+", " ", file.read_text())
    ]
    assert found == []
