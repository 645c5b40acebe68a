"""What made a run, from real repositories and real files."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from unisono.training.run_folder.local_imports import local_imports
from unisono.training.run_folder.provenance import machine, provenance, source_of, versions
from unisono.training.run_folder.repository import repository_state

AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *AUTHOR, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def write(folder: Path, **files: str) -> Path:
    """Files of Python by name; `_in_` stands for a slash and `init` for the file of a package."""
    for name, text in files.items():
        path = folder / f"{name.replace('_in_', '/').replace('init', '__init__')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = write(tmp_path / "project", task="import model\n", model="WIDTH = 1\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def test_a_clean_repository(repository: Path) -> None:
    state = repository_state(repository, [repository / "task.py"])
    clean = {"commit": git(repository, "rev-parse", "HEAD"), "is_dirty": False, "diff": "", "diff_is_cut": False, "untracked": []}
    assert state == clean


def test_changes_and_unknown_files_are_recorded(repository: Path) -> None:
    write(repository, model="WIDTH = 2\n", extra="", task="import model, extra\n")
    git(repository, "add", "model.py")
    found = provenance(repository / "task.py", command=["unisono", "train", "task.py"])
    state = found["task"]["git"]
    assert state["is_dirty"]
    assert "-WIDTH = 1\n+WIDTH = 2" in state["diff"], "staged changes count too"
    assert "+import model, extra" in state["diff"]
    assert state["untracked"] == ["extra.py"]
    assert found["command"] == ["unisono", "train", "task.py"]
    assert json.loads(json.dumps(found)) == found, "plain values"


def test_the_diff_applies_again(repository: Path, tmp_path: Path) -> None:
    write(repository, model="WIDTH = 'ä'\n")
    state = repository_state(repository, [])
    (tmp_path / "p").write_text(state["diff"])
    git(repository, "checkout", "-q", ".")
    git(repository, "apply", str(tmp_path / "p"))
    assert (repository / "model.py").read_text() == "WIDTH = 'ä'\n"


@pytest.mark.parametrize("num_lines", [100, 200_000])
def test_a_large_diff_is_cut_and_says_so(repository: Path, num_lines: int) -> None:
    write(repository, model="x = 1234\n" * num_lines)
    state = repository_state(repository, [], most_bytes=100_000)
    assert state["diff_is_cut"] == (num_lines > 100)
    assert len(state["diff"].encode()) <= 100_000
    assert (len(state["diff"]) == 100_000) == state["diff_is_cut"]


def test_no_repository_no_commit_no_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    (tmp_path / "plain").mkdir()
    assert "not a git repository" in repository_state(tmp_path / "plain", [])["missing"]
    git(tmp_path / "plain", "init", "-q")
    assert "HEAD" in repository_state(tmp_path / "plain", [])["missing"]
    monkeypatch.setenv("PATH", "")
    assert repository_state(tmp_path, []) == {"missing": "git is not installed"}


def test_local_imports_are_followed_and_others_are_not(tmp_path: Path) -> None:
    write(
        tmp_path,
        task="import numpy.linalg, near\nfrom package.inner import thing, deep\ndef f():\n    import late\n",
        near="import task  # in a circle\nimport os",
        late="",
        unused="",
        package_in_init="",
        package_in_inner_in_init="from . import sibling\nfrom ..top import name",
        package_in_inner_in_sibling="",
        package_in_inner_in_deep="",
        package_in_top="from torch import nn",
    )
    found = local_imports(tmp_path / "task.py")
    names = [file.relative_to(tmp_path).as_posix() for file in found.files]
    inner = ["package/inner/__init__.py", "package/inner/deep.py", "package/inner/sibling.py"]
    assert names == ["late.py", "near.py", "package/__init__.py", *inner, "package/top.py"]
    assert found.outside == {"numpy", "os", "torch"}
    assert found.unreadable == ()


def test_a_task_inside_a_package_finds_its_package(tmp_path: Path) -> None:
    write(tmp_path, lab_in_init="", lab_in_task="from lab import nets\nfrom .losses import one\n", lab_in_nets="", lab_in_losses="")
    found = local_imports(tmp_path / "lab" / "task.py")
    assert [file.name for file in found.files] == ["__init__.py", "losses.py", "nets.py"]
    assert found.outside == frozenset()


def test_installed_packages_are_not_local_even_beside_the_task(tmp_path: Path) -> None:
    folder = write(tmp_path / "site-packages", task="import installed", installed="")
    assert local_imports(folder / "task.py").files == ()
    assert local_imports(folder / "task.py").outside == {"installed"}


def test_files_are_hashed_and_broken_ones_named(tmp_path: Path) -> None:
    write(tmp_path, task="import broken", broken="def :")
    task = provenance(tmp_path / "task.py")["task"]
    assert task["sha256"] == hashlib.sha256(b"import broken").hexdigest()
    assert task["imports"] == {"broken.py": hashlib.sha256(b"def :").hexdigest()}
    assert task["unreadable_imports"] == ["broken.py"]


def test_a_task_without_a_file_is_recorded_by_its_source() -> None:
    task = provenance(None, {"model": write, "loss": "mse", "data": len})["task"]
    assert task["file"] is None
    assert task["sources"]["model"].startswith("def write(")
    assert task["sources"]["loss"] is None
    assert task["sources"]["data"] is None
    assert source_of(eval("lambda: 1")) is None


def test_versions_load_nothing() -> None:
    program = (
        "import sys; from unisono.training.run_folder.provenance import versions, machine; machine();"
        "print(versions(frozenset({'json', 'packaging'})), 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert "torch" not in told.replace("False False", "")
    assert told.endswith("False False\n")
    found = versions(frozenset({"pytest", "unheard_of"}))
    assert found["pytest"] == pytest.__version__
    assert found["python"] == sys.version.split()[0]
    assert "unheard_of" not in found


def test_the_machine() -> None:
    found = machine()
    assert found["host"]
    assert found["cpu"]
    assert 1 <= found["num_cpus_usable"] <= found["num_cpus"]
