"""`make test` in several sessions: every test is run once, and a failure in any of them is a failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.system import sessions
from tests.system.processes import plain_environment

LIMIT_S = 60.0
FOLDERS = ("ranks", "contracts", "unit/deeper", "new", "last")
SHARED = """
import os, pytest

@pytest.fixture(scope="session")
def slurm_of_the_session():
    return os.getpid()

def test_shared(slurm_of_the_session):
    print("SESSION", slurm_of_the_session)
"""


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, sessions.__file__, "tests", *arguments]
    bare = {**plain_environment(), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command, cwd=folder, env=bare, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S
    )
    return done.returncode, done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in FOLDERS:
        place = tmp_path / "tests" / name
        place.mkdir(parents=True)
        stem = name.replace("/", "_")
        (place / f"test_{stem}.py").write_text(f"def test_{stem}(): pass\ndef test_other_{stem}(): pass\n")
        (place / "__init__.py").touch()
    return tmp_path


def test_every_test_is_run_once(folder: Path) -> None:
    code, output = run(folder, "-v")
    assert code == 0, output
    for name in FOLDERS:
        stem = name.replace("/", "_")
        assert output.count(f"::test_{stem} PASSED") == output.count(f"::test_other_{stem} PASSED") == 1, output
    assert output.count("PASSED") == 2 * len(FOLDERS), output


@pytest.mark.parametrize("name", ["ranks", "last"])
def test_one_that_fails_is_shown_and_counts(folder: Path, name: str) -> None:
    (folder / "tests" / name / "test_wrong.py").write_text("def test_wrong(): assert 1 + 1 == 3\n")
    code, output = run(folder, "-v")
    assert code == 1, output
    assert "assert (1 + 1) == 3" in output
    assert output.count("PASSED") == 2 * len(FOLDERS), "the others ran to their end"


def test_what_exists_once_on_a_machine_is_used_by_one_session(folder: Path) -> None:
    for number, name in enumerate(FOLDERS):
        (folder / "tests" / name / f"test_shared_{number}.py").write_text(SHARED)
    code, output = run(folder, "-s")
    assert code == 0, output
    told = [line.partition("SESSION ")[2].split()[0] for line in output.splitlines() if "SESSION " in line]
    assert len(told) == len(FOLDERS) and len(set(told)) == 1, output


def test_a_choice_of_few_tests_or_none(folder: Path) -> None:
    assert run(folder, "-k", "deeper")[0] == 0
    assert run(folder, "-k", "nothing")[0] == sessions.NO_TESTS


def test_files_are_compiled_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sessions.NO_BYTECODE, "1")
    (folder / "tests" / "module.py").touch()
    (folder / "tests" / "test_imports_it.py").write_text("import tests.module\ndef test_it(): pass\n")
    code, output = run(folder)
    assert code == 0, output
    assert list((folder / "tests" / "__pycache__").glob("module.*.pyc"))
