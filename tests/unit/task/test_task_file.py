"""From a file to a task: what a user can write there, and what is said about what cannot be one."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from unisono.errors import UsageError
from unisono.task.task import Task
from unisono.task.task_file import check_file, load_task, read_pickled, write_pickled
from unisono.task.train_config import TrainConfig

TASK = """
from unisono.task.task import Task

class Kept:
    pass

def model(): return Kept()
def data(): pass
task = Task(model=model, data=data, name={name!r})
"""


@pytest.fixture(autouse=True)
def same_modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """What a task file adds to the modules and their path is gone after the test."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name, module in list(sys.modules.items()):
        if tmp_path in Path(getattr(module, "__file__", None) or "").parents:
            del sys.modules[name]


def written(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", ["task.py", "with a space/ünser Netz.py", "json.py", "class.py", "7.py"])
def test_any_name_of_a_file_will_do(tmp_path: Path, name: str) -> None:
    json = sys.modules["json"]
    task = load_task(written(tmp_path / name, TASK.format(name="mine")))
    assert task.name == "mine"
    assert type(pickle.loads(pickle.dumps(task.model()))) is type(task.model())  # the module is to be found by its name
    assert sys.modules["json"] is json


def test_two_files_of_one_name_are_two_tasks(tmp_path: Path) -> None:
    first, second = (load_task(written(tmp_path / folder / "task.py", TASK.format(name=folder))) for folder in "ab")
    assert (first.name, second.name) == ("a", "b")
    for task in (first, second):
        assert type(pickle.loads(pickle.dumps(task.model()))) is type(task.model())


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    assert load_task(written(tmp_path / "task.py", TASK.format(name="one"))).name == "one"
    assert load_task(written(tmp_path / "task.py", TASK.format(name="three"))).name == "three"


def test_modules_beside_the_file_can_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "beside_the_task.py", "name = 'beside'")
    written(tmp_path / "task.py", "import beside_the_task\n" + TASK.format(name="x").replace("'x'", "beside_the_task.name"))
    monkeypatch.chdir(tmp_path)
    assert load_task("task.py").name == "beside"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def f(:\n", r"task.py, line 1: invalid syntax: def f\(:"),
        ("a = 1\0", "task.py.*null bytes"),
        ("# -*- coding: nonsense -*-\n", "task.py: unknown encoding: nonsense"),
        ("x = 1\n", r"task.py defines no `task`; add task = un.Task\("),
        (TASK.format(name="").replace("task =", "Task_1 ="), "defines no `task`; rename Task_1 to task"),
        ("task = [3]", r"`task` in .*task.py must be one un.Task\(...\); received list"),
        ("from unisono.task.task import Task as task", "received Task"),
        ("from . import other", "task.py: attempted relative import.*write `import NAME`"),
    ],
)
def test_what_is_no_task_is_said_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load_task(written(tmp_path / "task.py", text))


def test_a_file_that_fails_keeps_its_error_and_leaves_no_module(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        load_task(written(tmp_path / "broken_task.py", "1 / 0"))
    assert caught.traceback[-1].path == tmp_path / "broken_task.py"
    assert "broken_task" not in sys.modules


def test_a_path_that_cannot_be_a_task_is_refused_without_running_anything(tmp_path: Path) -> None:
    written(tmp_path / "digits.py", "raise AssertionError")
    check_file(tmp_path / "digits.py")
    for path, words in (
        (tmp_path / "digit.py", "digit.py does not exist; in .* there are digits.py"),
        (tmp_path / "gone" / "task.py", "does not exist; check the path"),
        (tmp_path, "is a folder; name the task file in it"),
        (Path(written(tmp_path / "task.txt", "")), r"must be a Python file \(.py\)"),
    ):
        with pytest.raises(UsageError, match=words):
            check_file(path)


def test_a_task_of_a_notebook_travels_by_value(tmp_path: Path) -> None:
    cell: dict[str, object] = {"__name__": "__main__"}
    exec("scale = 3\ndef model(): return scale\ndef data(): pass", cell)
    task = Task(model=cell["model"], data=cell["data"], name="cell")  # type: ignore[arg-type]
    config = TrainConfig("", {"lr": 0.5})
    cell["scale"] = 4
    found = read_pickled(write_pickled(tmp_path, task, config, "told"))
    cell["scale"] = 5
    assert isinstance(found.task, Task) and found.task.model() == 4
    assert (found.config, found.result_file) == (config, "told")


def test_what_cannot_travel_is_said(tmp_path: Path) -> None:
    with (tmp_path / "open").open("w") as file:
        task = Task(model=lambda: file, data=lambda: None)
        with pytest.raises(
            UsageError, match=r"the task cannot be sent to its workers: .*; create files, locks and the like inside model\(\)"
        ):
            write_pickled(tmp_path, task, TrainConfig(""), "told")
