"""One run, one directory: names, refusals, the lock between real processes, and files that are whole or not there."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unisono.errors import UsageError
from unisono.files.atomic import atomic_replacement, explain_os_errors
from unisono.training.run_folder.run_directory import RunDirectory, differences

CONFIG = {"lr": 0.1, "task": "digits", "optimizer_options": {"momentum": 0.9}}


def open_new(tmp_path: Path, name: str = "digits") -> RunDirectory:
    return RunDirectory.open(None, name, CONFIG, parent=tmp_path / "runs")


def test_default_names_count_up(tmp_path: Path) -> None:
    for expected in ("digits", "digits-2", "digits-3"):
        with open_new(tmp_path) as run:
            assert run.path == tmp_path / "runs" / expected
            assert json.loads(run.config.read_text()) == CONFIG


def test_a_name_never_leaves_the_folder_of_runs(tmp_path: Path) -> None:
    for name in ("../../etc", "a/b", "", ".."):
        with open_new(tmp_path, name) as run:
            assert run.path.parent == tmp_path / "runs"
            assert run.path.name.strip("._-0123456789")


def test_files_have_their_places(tmp_path: Path) -> None:
    with open_new(tmp_path) as run:
        paths = (run.config, run.metrics, run.summary, run.weights, run.best, run.curves, run.timeline, run.checkpoints)
        names = "config.json metrics.jsonl summary.json weights.safetensors best.safetensors curves.png timeline.json checkpoints"
        assert [path.relative_to(run.path).as_posix() for path in paths] == names.split()


def test_drafts_of_killed_processes_are_removed(tmp_path: Path) -> None:
    RunDirectory.open(tmp_path, "digits", CONFIG).close()
    (tmp_path / ".summary.json.4711.draft").write_text('{"half')
    (tmp_path / ".of_the_user").write_text("")
    with RunDirectory.open(tmp_path, "digits", CONFIG):
        assert {path.name for path in tmp_path.iterdir()} == {".lock", ".of_the_user", "config.json"}


def test_out_with_another_run_names_what_differs(tmp_path: Path) -> None:
    RunDirectory.open(tmp_path, "digits", CONFIG).close()
    other = {"lr": 0.2, "task": "digits", "optimizer_options": {"momentum": 0.9, "nesterov": True}, "seed": 1}
    with pytest.raises(UsageError) as caught:
        RunDirectory.open(tmp_path, "digits", other)
    told = str(caught.value)
    assert "holds another run: " in told and "--fresh" in told and "--accept-changes" in told
    assert "lr 0.1 before, 0.2 now; optimizer_options.nesterov nothing before, true now; seed nothing before, 1 now" in told
    assert json.loads((tmp_path / "config.json").read_text()) == CONFIG, "nothing is lost"


def test_data_whose_values_have_changed_are_another_run(tmp_path: Path) -> None:
    def config(*sums: float) -> dict[str, Any]:
        return {**CONFIG, "samples": {"sha256": "a", "values": {"train": {"[0]": sums}, "test": {"[0]": None}}}}

    RunDirectory.open(tmp_path / "old", "digits", {**CONFIG, "samples": {"sha256": "a"}}).close()
    RunDirectory.open(tmp_path / "old", "digits", config(8.0, 1.0)).close()  # an older version recorded none
    RunDirectory.open(tmp_path / "new", "digits", config(8.0, 1.0)).close()
    RunDirectory.open(tmp_path / "new", "digits", config(8.0, 1.000001)).close()  # rounding
    with pytest.raises(UsageError, match="holds another run: the values of the inputs of the training data have changed"):
        RunDirectory.open(tmp_path / "new", "digits", config(8.0, 1.1))
    with RunDirectory.open(tmp_path / "new", "digits", config(8.0, 1.1), accept_changes=True) as run:
        assert run.changes == ("the values of the inputs of the training data have changed",)


def test_the_same_run_resumes_whatever_may_change(tmp_path: Path) -> None:
    config = {**CONFIG, "num_workers": 2, "task_file": "a.py", "settings": {"epochs": 3}}
    RunDirectory.open(tmp_path, "digits", config).close()
    for change in ({"num_workers": 1}, {"task_file": "b.py"}, {"settings": {"epochs": 5}}):
        config |= change
        with RunDirectory.open(tmp_path, "digits", config) as run:
            assert run.changes == ()
    with pytest.raises(UsageError, match=r"settings.epochs 5 before, 4 now"):
        RunDirectory.open(tmp_path, "digits", {**config, "settings": {"epochs": 4}})
    with RunDirectory.open(tmp_path, "digits", {**config, "lr": 1.0}, accept_changes=True) as run:
        assert run.changes == ("lr 0.1 before, 1.0 now",)
    assert json.loads((tmp_path / "config.json").read_text())["lr"] == 0.1, "kept until the caller can go on so"


def test_fresh_puts_the_run_aside_and_leaves_what_is_not_of_it(tmp_path: Path) -> None:
    for number in (1, 2):
        RunDirectory.open(tmp_path, "digits", {**CONFIG, "lr": number}, fresh=True).close()
        (tmp_path / "metrics.jsonl").write_text(f"{number}")
        (tmp_path / "checkpoints").mkdir()
        (tmp_path / "job.sh").touch()
    RunDirectory.open(tmp_path, "digits", CONFIG, fresh=True).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "config.json", "earlier-1", "earlier-2", "job.sh"]
    for number in (1, 2):
        aside = tmp_path / f"earlier-{number}"
        assert (aside / "metrics.jsonl").read_text() == f"{number}" and (aside / "checkpoints").is_dir()
        assert json.loads((aside / "config.json").read_text())["lr"] == number


def test_one_command_begins_afresh_once(tmp_path: Path) -> None:
    """An attempt that died before it put the old run aside leaves that to the next; one that died later is resumed."""
    RunDirectory.open(tmp_path, "digits", {**CONFIG, "lr": 1}).close()
    for launch, earlier in (("first", 1), ("first", 1), ("second", 2), ("second", 2)):
        RunDirectory.open(tmp_path, "digits", CONFIG, fresh=True, launch=launch).close()
        assert len(list(tmp_path.glob("earlier-*"))) == earlier, launch


def test_out_with_remains_or_garbage_is_refused_and_with_other_files_taken(tmp_path: Path) -> None:
    remains, garbage, notes = (tmp_path / name for name in ("remains", "garbage", "notes"))
    for folder, file in ((remains, "metrics.jsonl"), (garbage, "config.json"), (notes, "notes.txt")):
        folder.mkdir()
        (folder / file).write_text("{")
    with pytest.raises(UsageError, match=r"holds metrics.jsonl of a run without its config.json"):
        RunDirectory.open(remains, "digits", CONFIG)
    with pytest.raises(UsageError, match=r"config.json is not valid JSON"):
        RunDirectory.open(garbage, "digits", CONFIG)
    with RunDirectory.open(notes, "digits", CONFIG):
        assert (notes / "notes.txt").read_text() == "{"


def test_many_differences_are_counted(tmp_path: Path) -> None:
    RunDirectory.open(tmp_path, "digits", {str(number): 0 for number in range(10)}).close()
    with pytest.raises(UsageError, match="5 0 before, 1 now and 4 more"):
        RunDirectory.open(tmp_path, "digits", {str(number): 1 for number in range(10)})


def test_the_same_values_in_other_types_are_the_same_run(tmp_path: Path) -> None:
    assert list(differences({"a": [1, 2], "b": None}, {"a": [1, 2]})) == []
    RunDirectory.open(tmp_path, "digits", {"shape": (1, 2), "lr": np.float64(0.1), "data": Path("x")}).close()
    RunDirectory.open(tmp_path, "digits", {"shape": [1, 2], "lr": 0.1, "data": "x"}).close()


HOLD = """
import sys
from pathlib import Path
from unisono.training.run_folder.run_directory import RunDirectory
with RunDirectory.open(Path(sys.argv[1]), "digits", {}):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match=rf"in use by another run \(process {holder.pid} on {os.uname().nodename}\)"):
            RunDirectory.open(tmp_path, "digits", {})
        holder.kill()  # a lock dies with its process, however it ends
    RunDirectory.open(tmp_path, "digits", {}).close()


def test_two_in_one_process_are_refused_too_and_close_gives_it_back(tmp_path: Path) -> None:
    run = RunDirectory.open(tmp_path, "digits", {})
    with pytest.raises(UsageError, match=f"process {os.getpid()} on"):
        RunDirectory.open(tmp_path, "digits", {})
    run.close()
    run.close()
    run.config.unlink()
    RunDirectory.open(tmp_path, "digits", {}).close()


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    run = RunDirectory.open(tmp_path, "digits", {})
    resume = os.pipe()
    if (child := os.fork()) == 0:
        os.close(resume[1])
        os.read(resume[0], 1)
        os._exit(0)
    run.close()
    run.config.unlink()
    RunDirectory.open(tmp_path, "digits", {}).close()
    os.close(resume[1])
    assert os.waitpid(child, 0)[1] == 0
    os.close(resume[0])


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match=rf"cannot write {out}: .*a file is where a directory should be"):
            RunDirectory.open(out, "digits", CONFIG)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_place_that_takes_no_directory_is_named() -> None:
    with pytest.raises(UsageError, match="cannot write /proc/unisono: "):
        RunDirectory.open("/proc/unisono", "digits", CONFIG)


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.ENOSPC, "free some space"), (errno.EDQUOT, "free some space"), (errno.EROFS, "where you may write")],
)
def test_the_system_says_no_and_we_say_what_to_do(number: int, remedy: str) -> None:
    with (
        pytest.raises(UsageError, match=f"cannot write out/x: {os.strerror(number)}; .*{remedy}"),
        explain_os_errors(Path("out/x")),
    ):
        raise OSError(number, os.strerror(number))


def test_a_write_that_does_not_fit_leaves_the_old_file(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with RunDirectory.open(tmp_path, "digits", {}) as run:
        run.write_json("summary.json", "old")
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        try:
            with pytest.raises(UsageError, match=r"summary.json: File too large; free some space"):
                run.write_json("summary.json", "x" * 100_000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert json.loads(run.summary.read_text()) == "old"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".lock", "config.json", "summary.json"]


def test_a_failed_body_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), atomic_replacement(tmp_path / "a") as draft:
        draft.write_text("half")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_json_of_numbers_arrays_and_paths(tmp_path: Path) -> None:
    value: dict[Any, Any] = {
        "nan": float("nan"),
        "np": np.float32(0.5),
        "array": np.arange(2),
        "path": Path("a/b"),
        "set": {2, 1},
        3: (1,),
    }
    with open_new(tmp_path) as run:
        run.write_json("summary.json", value)
        found = json.loads(run.summary.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert found == {"nan": None, "np": 0.5, "array": [0, 1], "path": "a/b", "set": [1, 2], "3": [1]}
