"""`make test` in several sessions: no folder of tests is forgotten, and a failure in any of them is a failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.system import sessions
from tests.system.processes import plain_environment

LIMIT_S = 60.0


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, sessions.__file__, *arguments]
    bare = {**plain_environment(), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command, cwd=folder, env=bare, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S
    )
    return done.returncode, done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("ranks", "contracts", "unit/deeper", "new"):
        place = tmp_path / "tests" / name
        place.mkdir(parents=True)
        stem = name.replace("/", "_")
        (place / f"test_{stem}.py").write_text(f"def test_{stem}(): pass\ndef test_other_{stem}(): pass\n")
    return tmp_path


def test_every_test_is_run_once(folder: Path) -> None:
    code, output = run(folder, "-v")
    assert code == 0, output
    for stem in ("ranks", "contracts", "unit_deeper", "new"):
        assert output.count(f"::test_{stem} PASSED") == output.count(f"::test_other_{stem} PASSED") == 1, output
    assert output.count("PASSED") == 8, output


@pytest.mark.parametrize(("name", "other_passed"), [("ranks", 4), ("contracts", 4), ("new", 2)])
def test_one_that_fails_is_shown_and_counts(folder: Path, name: str, other_passed: int) -> None:
    (folder / "tests" / name / "test_wrong.py").write_text("def test_wrong(): assert 1 + 1 == 3\n")
    code, output = run(folder)
    assert code == 1, output
    assert "assert (1 + 1) == 3" in output
    assert f"{other_passed} passed" in output, "the others ran to their end"


def test_a_choice_that_is_in_one_only(folder: Path) -> None:
    assert run(folder, "-k", "deeper")[0] == 0
    assert run(folder, "-k", "nothing")[0] == sessions.NO_TESTS
