"""Every variable of ours that the code names is on the page about them, and the page names no other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "variables.md"
NAME = re.compile(r"\bUNISONO_[A-Z0-9_]*[A-Z0-9]\b")
OF_TESTS = {"UNISONO_NO_APT"}


def named_in(*files: Path) -> set[str]:
    return {name for file in files for name in NAME.findall(file.read_text())}


def in_tables(text: str) -> set[str]:
    """The names in the first column of the page's tables."""
    rows = (line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))
    return {name for row in rows for name in NAME.findall(row)}


def test_every_variable_is_documented_and_none_that_is_not_there() -> None:
    used = named_in(*(ROOT / "src").rglob("*.py"))
    assert used >= {"UNISONO_ENGINE", "UNISONO_RESTART"}
    assert in_tables(PAGE.read_text()) == used
    assert named_in(PAGE) == used | OF_TESTS


def test_a_variable_without_a_row_would_be_seen(tmp_path: Path) -> None:
    (tmp_path / "new.py").write_text('env.get("UNISONO_NEW_WISH")')
    assert named_in(tmp_path / "new.py") == {"UNISONO_NEW_WISH"}
    assert in_tables("| `UNISONO_A`, `UNISONO_B` | see `UNISONO_C` |\nand `UNISONO_D`") == {"UNISONO_A", "UNISONO_B"}


def test_other_pages_name_no_unknown_variable() -> None:
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page != PAGE]
    assert named_in(ROOT / "README.md", *pages) <= named_in(PAGE)
