"""Git ignores what runs and builds leave at the top, and no file of the source: a name in .gitignore without a slash would."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
USUAL_NAMES = ("build", "dist", "runs", "studies", "packages", "checkpoints", "env", "lib", "bin", "data", "models")
"""Of packages, and in the lists of what to ignore that people copy."""
LEFT_AT_THE_TOP = (
    "runs/digits/summary.json",
    "studies/digits/study.json",
    "build/lib/unisono/cli.py",
    "dist/unisono.whl",
    ".venv/bin/python",
    "src/unisono/__pycache__/cli.pyc",
    "src/unisono.egg-info/PKG-INFO",
)
HOLDS_EVERYWHERE = "__pycache__/"


def git(*arguments: str, given: str = "") -> list[str]:
    """Local: what git answers, without what this user ignores everywhere."""
    command = ["git", "-c", "core.excludesFile=", *arguments]
    done = subprocess.run(command, cwd=ROOT, input=given, capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 1), done.stderr  # 1: nothing is ignored
    return [name for name in done.stdout.split("\0") if name]


def ignored(*paths: str) -> list[str]:
    return git("check-ignore", "--no-index", "--stdin", "-z", given="\0".join(paths))


@pytest.fixture(autouse=True)
def checkout() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout")


def test_no_file_of_a_package_is_ignored() -> None:
    packages = [str(folder.relative_to(ROOT)) for folder in (ROOT / "src").rglob("*") if (folder / "__init__.py").exists()]
    assert len(packages) > 10
    assert ignored(*(f"{package}/{name}/x.py" for package in packages for name in USUAL_NAMES)) == []


def test_no_file_below_src_is_ignored() -> None:
    """A new file that git ignores is missing from the commit, and nothing says so."""
    found = [file.relative_to(ROOT) for file in (ROOT / "src").rglob("*") if file.is_file()]
    ours = [str(file) for file in found if "__pycache__" not in file.parts and not file.parts[1].endswith(".egg-info")]
    assert len(ours) > 500
    assert ignored(*ours) == []


def test_entries_hold_at_one_place_only() -> None:
    entries = [line for line in (ROOT / ".gitignore").read_text().splitlines() if line and not line.startswith("#")]
    assert HOLDS_EVERYWHERE in entries
    assert [entry for entry in entries if not entry.startswith("/") and entry != HOLDS_EVERYWHERE] == []


def test_no_tracked_file_is_ignored() -> None:
    tracked = git("ls-files", "-z")
    assert len(tracked) > 500
    assert ignored(*tracked) == []


def test_what_runs_and_builds_leave_is_ignored() -> None:
    assert ignored(*LEFT_AT_THE_TOP) == list(LEFT_AT_THE_TOP)
