"""A task comes back as it was trained: its file, and what the command line changed."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from textwrap import dedent

import pytest

from unisono.errors import UsageError
from unisono.predict.finished_run import open_run
from unisono.predict.rebuild import rebuild_task
from unisono.task.overrides import change
from unisono.task.task import Task
from unisono.task.task_file import load_task
from unisono.training.run_folder.provenance import provenance
from unisono.training.run_folder.run_record import as_plain

FILE = """
    import layers
    import unisono as un

    def activation(x): return x
    def model(sizes: tuple = (3, 3), act=activation, width: int = 8): ...
    def data(part: str = "all"): ...
    def own_loss(outputs, targets): ...

    options = {"momentum": 0.9, "betas": (0.9, 0.99)}
    task = un.Task(model=model, data=data, loss=own_loss, metrics=("accuracy",), optimizer_options=options)
"""
CHANGES = {"model.sizes": (5, 7), "data.part": "half", "optimizer.momentum": 0.5, "precision": "bf16", "metrics": ("auc", "f1")}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory whose records are those that a training writes."""
    (tmp_path / "layers.py").write_text("WIDTH = 3\n")
    file = tmp_path / "rebuilt_task.py"
    file.write_text(dedent(FILE))
    changed = change(load_task(str(file)), CHANGES)
    settings = {name: as_plain(getattr(changed.task, name)) for name in Task.__dataclass_fields__ if name not in ("model", "data")}
    config = {"task_file": str(file), "model": as_plain(changed.model), "data": as_plain(changed.data), "settings": settings}
    made = tmp_path / "run"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(config))
    (made / "summary.json").write_text(json.dumps({"metrics": {}, "provenance": provenance(file)}))
    return made


def test_arguments_and_settings_are_those_of_the_run(run: Path) -> None:
    found = rebuild_task(open_run(run))
    assert found.model["sizes"] == (5, 7) and found.model["width"] == 8 and found.model["act"].__name__ == "activation"
    assert found.data == {"part": "half"}
    assert found.task.optimizer_options == {"momentum": 0.5, "betas": (0.9, 0.99)}
    assert (found.task.precision, found.task.metrics) == ("bf16", ("auc", "f1"))
    assert callable(found.task.loss)


def test_a_changed_file_or_import_is_named(run: Path) -> None:
    layers = run.parent / "layers.py"
    layers.write_text("WIDTH = 4\n")
    with pytest.raises(
        UsageError, match=r"has changed since it was trained: layers\.py \(sha256 .* then, .* now\)\..*--accept-changes"
    ):
        rebuild_task(open_run(run))
    rebuild_task(open_run(run), accept_changes=True)
    layers.unlink()
    with pytest.raises(UsageError, match=r"layers\.py is gone"):
        rebuild_task(open_run(run))


def test_a_task_file_that_is_gone_can_be_named(run: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "moved" / "rebuilt_task.py"
    elsewhere.parent.mkdir()
    (tmp_path / "rebuilt_task.py").rename(elsewhere)
    with pytest.raises(UsageError, match=r"the task file of .* is not there any more .*--task"):
        rebuild_task(open_run(run))
    (tmp_path / "layers.py").rename(elsewhere.parent / "layers.py")
    assert rebuild_task(open_run(run), task_file=str(elsewhere)).model["sizes"] == (5, 7)


def test_a_task_of_a_notebook_needs_a_file(run: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"task_file": None}))
    with pytest.raises(UsageError, match=r"came from a notebook.*--task"):
        rebuild_task(open_run(run))


def test_what_is_written_down_is_the_same_in_every_process() -> None:
    """Where an object lies in memory is no part of an experiment."""
    assert as_plain(partial(max, 3, key=abs)) == {"partial": "max", "arguments": [3], "keywords": {"key": "abs"}}
    assert " at 0x" not in as_plain(object())
