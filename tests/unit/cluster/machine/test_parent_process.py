"""Which process started us, on made-up /proc folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from unisono.cluster.machine import process_tree
from unisono.cluster.machine.parent_process import launcher_process


def process(proc: Path, pid: int, parent: int, *variables: str, started: int = 1000) -> None:
    folder = proc / str(pid)
    folder.mkdir()
    fields = ["S", str(parent), *["0"] * 17, str(started), "0"]
    (folder / "stat").write_text(f"{pid} (a name) with) blanks) {' '.join(fields)}")
    (folder / "environ").write_bytes(b"\0".join(variable.encode() for variable in variables))


def test_the_nearest_ancestor_without_a_rank(tmp_path: Path) -> None:
    process(tmp_path, 1, 0)
    process(tmp_path, 10, 1, "PATH=/bin", started=777)
    process(tmp_path, 11, 10, "PMI_RANK=0", "PATH=/bin")
    process(tmp_path, 12, 11, "PATH=/bin", "PMI_RANK=0")
    process(tmp_path, 21, 10, "PMI_RANK=1")
    assert launcher_process("PMI_RANK", 12, tmp_path) == "10-777"
    assert launcher_process("PMI_RANK", 21, tmp_path) == "10-777"


def test_a_name_that_only_begins_alike_is_not_the_mark(tmp_path: Path) -> None:
    process(tmp_path, 1, 0)
    process(tmp_path, 10, 1, "PMI_RANKS=4", "X=PMI_RANK=0")
    process(tmp_path, 11, 10, "PMI_RANK=0")
    assert launcher_process("PMI_RANK", 11, tmp_path) == "10-1000"


def test_unknown_where_all_ancestors_carry_it_or_there_is_no_proc(tmp_path: Path) -> None:
    process(tmp_path, 1, 0, "PMI_RANK=0")
    process(tmp_path, 11, 1, "PMI_RANK=0")
    assert launcher_process("PMI_RANK", 11, tmp_path) is None
    assert launcher_process("PMI_RANK", 11, tmp_path / "nothing") is None
    process(tmp_path, 21, 20, "PMI_RANK=0")  # whose parent is hidden or gone
    assert launcher_process("PMI_RANK", 21, tmp_path) is None


def test_processes_that_are_hidden_from_us_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden(folder: Path) -> list[str]:
        raise PermissionError(1, "Operation not permitted", str(folder))

    monkeypatch.setattr(process_tree, "stat", hidden)
    assert process_tree.processes() == {}
