"""What is kept of other people's programs, and the page that several machines write."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.horovod_programs import Case, lectures, main, publish, run, suite, without_paths


def test_what_is_kept_of_a_program(tmp_path: Path) -> None:
    program = "import os, sys; print('\\x1b[32m3 passed\\x1b[0m, 1 skipped in 2 s'); print(os.environ['HERE']); sys.exit(4)"
    case = Case("suite", "small", [sys.executable, "-c", program], r"\d+ passed.*(?= in )", {"HERE": f"{tmp_path}/a:/b"})
    done = without_paths(run(case, tmp_path), {sys.executable: "python", str(tmp_path): "TMP"})
    assert (done["code"], done["found"]) == (4, ["3 passed, 1 skipped"])
    assert done["last_lines"][-1] == "TMP/a:/b"
    assert done["command"].startswith("HERE=TMP/a python -c import os")


def test_a_program_that_does_not_end_is_ended(tmp_path: Path) -> None:
    case = Case("examples", "endless", [sys.executable, "-c", "import time; print('on', flush=True); time.sleep(600)"], "on")
    done = run(case, tmp_path, 3.0)
    assert (done["code"], done["found"]) == (124, ["on"]) and "ended after 3 s" in done["last_lines"]


def test_the_page_of_two_machines(tmp_path: Path) -> None:
    def one(part: str, name: str, code: int, sitting: str) -> dict[str, Any]:
        lines = {"command": f"python {name}", "seconds": 3.2, "found": ["5 passed", "5 passed"], "last_lines": ["5 passed"]}
        return {"part": part, "name": name, "code": code, **lines, "sitting": sitting}

    sittings = {name: {"torch": name, "at": "now", "commit": "1"} for name in "ABC"}
    runs = [one("suite", "shm", 0, "A"), one("lectures", "jax", 1, "C")]
    assert "5 passed; 5 passed" not in publish({"sittings": sittings, "runs": runs}, tmp_path)
    kept = json.loads((tmp_path / "horovod_programs.json").read_text())
    assert list(kept["sittings"]) == ["A", "C"] and [found["code"] for found in kept["runs"]] == [0, 1]
    text = (tmp_path / "horovod_programs.md").read_text()
    assert "## Sitting A" in text and "## Sitting B" not in text and "- jax: `python jax`" in text
    assert "1 of 2 programs end without an error." in text


def test_the_page_alone_from_the_raw_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = tmp_path / "horovod_programs.json"
    raw.write_text('{"sittings": {}, "runs": []}')
    monkeypatch.setattr(sys, "argv", ["horovod_programs", "--page-only", "--out", str(tmp_path)])
    assert main() == 0
    assert raw.read_text() == '{"sittings": {}, "runs": []}' and (tmp_path / "horovod_programs.md").exists()


def test_each_engine_and_backend_has_its_command(tmp_path: Path) -> None:
    cases = {case.name: " ".join(case.command) for case in suite(tmp_path / "horovod", tmp_path)}
    assert "--engine gloo --" in cases["gloo, 4 processes"] and cases["shm, 2 processes"].endswith("test/parallel/test_torch.py")
    assert [case.environment["KERAS_BACKEND"] for case in lectures(tmp_path, ["jax", "torch"])] == ["jax", "torch"]


@pytest.mark.parametrize(("words", "missing"), [(("--parts", "suite"), "--checkout"), (("--parts", "lectures"), "--mnist")])
def test_what_a_part_needs_is_said(
    words: tuple[str, ...], missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["horovod_programs", *words])
    with pytest.raises(SystemExit):
        main()
    assert f"{missing} DIR is needed" in capsys.readouterr().err
