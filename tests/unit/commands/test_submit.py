"""`unisono submit`: what it refuses before anything is submitted, and what it hands to sbatch."""

from __future__ import annotations

from pathlib import Path

import pytest

from unisono.cli import main

Capture = pytest.CaptureFixture[str]

SBATCH = """#!/bin/sh
printf '%s\\n' "$@" > "$(dirname "$0")/../called"
env > "$(dirname "$0")/../env"
[ ! -e "$(dirname "$0")/../refuses" ] || { echo "sbatch: error: invalid partition specified: gpu" >&2; exit 1; }
echo 17
"""
SQUEUE = """#!/bin/sh
cat "$(dirname "$0")/../queue"
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a task and a SLURM that notes what it is told."""
    (tmp_path / "bin").mkdir()
    for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "queue").touch()
    (tmp_path / "my task.py").write_text("task = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("UNISONO_SITE", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def printed(capsys: Capture, *words: str) -> str:
    """The batch file that --dry-run shows."""
    assert main(["submit", "my task.py", "--dry-run", *words]) == 0
    return capsys.readouterr().out


def refused(capsys: Capture, *words: str) -> str:
    assert main(["submit", *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1, shown.err
    return shown.err


def test_the_command_of_the_training_is_as_typed_less_what_is_of_the_job(place: Path, capsys: Capture) -> None:
    text = printed(
        capsys,
        "--nodes",
        "2",
        "--lr",
        "0.5",
        "-n",
        "4",
        "--partition=gpu",
        "--set",
        "model.name=a b",
        "--time",
        "30",
        "--",
        "-C",
        "a100",
    )
    assert "unisono train 'my task.py' --lr 0.5 -n 4 --set 'model.name=a b' --out runs/my_task \\\n" in text
    for line in ("--nodes=2", "--ntasks=4", "--partition=gpu", "--constraint=a100", "--time=00:30:00"):
        assert f"#SBATCH {line}" in text
    assert "ntasks-per-node" not in text
    assert "scontrol" not in text
    assert not (place / "runs").exists(), "a dry run leaves nothing"


def test_one_worker_on_each_node_by_default(place: Path, capsys: Capture) -> None:
    text = printed(capsys, "--nodes", "2", "--time", "30", "--requeue")
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n" in text
    assert "scontrol requeue" in text


def test_the_site_file_counts_and_the_command_line_outweighs_it(place: Path, capsys: Capture) -> None:
    (place / "unisono-site.toml").write_text(
        'partition = "cpu"\nmodules = ["python"]\ncontainer = "apptainer exec $IMAGE"\nsbatch = { time = "1:00:00", qos = "low" }\n'
    )
    text = printed(capsys, "--partition", "gpu", "--", "--qos=high")
    assert "#SBATCH --partition=gpu" in text and "#SBATCH --qos=high" in text and "cpu\n" not in text
    assert "#SBATCH --time=01:00:00" in text
    assert "apptainer exec $IMAGE unisono train" in text


def test_a_job_is_submitted_from_its_directory(place: Path, capsys: Capture) -> None:
    assert main(["submit", "my task.py", "--time", "30", "--", "--dependency=afterok:3", "--exclusive"]) == 0
    assert "submitted job 17; run directory: runs/my_task" in capsys.readouterr().out
    file = place / "runs" / "my_task" / "job.sh"
    assert (place / "called").read_text().split() == ["--parsable", "--dependency=afterok:3", "runs/my_task/job.sh"]
    assert "#SBATCH --exclusive" in file.read_text()
    assert "dependency" not in file.read_text(), "a successor does not wait for what the first has waited for"
    assert (place / "runs" / "my_task" / "jobs.log").read_text().endswith(" 17 submitted as number 1\n")
    assert main(["submit", "my task.py", "--time", "30"]) == 0
    assert (place / "runs" / "my_task-2" / "job.sh").exists()


def test_a_job_does_not_inherit_what_is_said_of_the_one_it_is_submitted_from(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_CPUS_PER_TASK", "SLURM_CONF"):
        monkeypatch.setenv(name, "7")
    assert main(["submit", "my task.py", "--time", "30"]) == 0
    names = [line.split("=")[0] for line in (place / "env").read_text().splitlines()]
    assert [name for name in names if name.startswith("SLURM")] == ["SLURM_CONF"]


def test_the_folder_has_the_name_that_the_shell_gives_it(place: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "link").symlink_to(place)
    monkeypatch.setenv("PWD", str(place / "link"))
    assert f"#SBATCH --chdir={place}/link  " in printed(capsys, "--time", "30")
    monkeypatch.setenv("PWD", "/")
    assert f"#SBATCH --chdir={place}  " in printed(capsys, "--time", "30")


def test_a_refusal_of_sbatch_is_reported_and_leaves_no_files(place: Path, capsys: Capture) -> None:
    (place / "refuses").touch()
    said = refused(capsys, "my task.py", "--time", "30")
    assert "sbatch: error: invalid partition specified: gpu" in said
    assert list((place / "runs").iterdir()) == []


def test_a_second_chain_in_one_directory_is_refused(place: Path, capsys: Capture) -> None:
    command = ["submit", "my task.py", "--time", "30", "--out", "here"]
    assert main(command) == 0
    capsys.readouterr()
    (place / "queue").write_text("17 PENDING\n")
    assert "job 17 (PENDING) of here is already in the queue" in refused(capsys, *command[1:])
    (place / "queue").write_text("17 CANCELLED\n")
    assert main(command) == 0


def test_without_slurm_the_message_has_a_remedy(place: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(place))
    assert "sbatch is not on the PATH" in refused(capsys, "my task.py", "--time", "30")
    assert not (place / "runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["my task.py"], "needs the time limit of each job; give e.g. --time 00:30:00"),
        (["my task.py", "--time", "soon"], "--time must be above 0 and written like"),
        (["my task.py", "--time", "0:05"], "--time 0:05 leaves no time to train"),
        (["my tusk.py", "--time", "30"], "the task file my tusk.py does not exist"),
        (["my task.py", "--time", "30", "--epoch", "3"], "unisono submit does not know '--epoch'"),
        (["my task.py", "--time", "30", "--on-nan", "cry"], "--on-nan must be one of stop, skip"),
        (["my task.py", "--time", "30", "-n", "3", "--nodes", "2", "--ntasks-per-node", "2"], "-n 3 workers do not fill 2 nodes"),
        (["my task.py", "--time", "30", "-n", "1", "--nodes", "2"], "-n 1 workers cannot use --nodes 2"),
        (["my task.py", "--time", "30", "--nodes", "0"], "--nodes must be a whole number of at least 1; received 0"),
        (["my task.py", "--time", "30", "--max-jobs", "0"], "--max-jobs must be a whole number of at least 1; received 0"),
        (["my task.py", "--time", "30", "--time-limit", "2h"], "leave --time-limit out"),
        (["my task.py", "--time", "30", "--fresh"], "--fresh would start over in every job"),
        (["my task.py", "--time", "30", "-n", "2", "--restarts", "3"], "--restarts is for workers that unisono starts itself"),
        (["my task.py", "--time", "30", "--chain", "--requeue"], "not allowed with argument --chain"),
        (["my task.py", "--time", "30", "--site", "nowhere"], "there is no site file nowhere"),
        (["my task.py", "--time", "30", "--", "--time=40"], "--time cannot be passed to sbatch"),
        (["my task.py", "--time", "30", "--", "--epochs=40", "3"], "'3' is not an option of sbatch"),
    ],
)
def test_mistakes(words: list[str], message: str, place: Path, capsys: Capture) -> None:
    assert message in refused(capsys, *words)
    assert not (place / "called").exists()
    assert not (place / "runs").exists()
