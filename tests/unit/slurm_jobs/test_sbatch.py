"""The batch file: what it says, and what it does when it runs, with stand-ins for SLURM's commands that note their calls."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from unisono.errors import UsageError
from unisono.slurm_jobs import job_log, sbatch, sbatch_options
from unisono.slurm_jobs.sbatch import Job

REAL = ("bash", "date", "sed", "env", "cat")
"""All that the batch file may need of a machine beside SLURM."""

SRUN = """#!/bin/bash
printf '%s\\n' "$@" > srun.called
[ ! -e step.txt ] || printf '{\\n  "state": "stopped",\\n  "step": %s,\\n  "epoch": 1\\n}\\n' "$(cat step.txt)" > "$RUN/status.json"
exit "$(cat code.txt)"
"""
SBATCH = """#!/bin/bash
printf '%s\\n' "${SLURM_RESTART_COUNT:-none}" "$@" > sbatch.called
[ ! -e sbatch.refuses ] || exit 1
echo "43;somewhere"
"""
SCONTROL = """#!/bin/bash
printf '%s\\n' "$@" > scontrol.called
[ ! -e scontrol.refuses ] || exit 1
"""


@dataclass(frozen=True)
class Bench:
    """A folder in which a batch file runs; its name has a space and a quote."""

    folder: Path
    job: Job

    def run(
        self, code: int = 0, step: int | None = None, number: int | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """One job whose training ends with this code at this step."""
        for called in self.folder.glob("*.called"):
            called.unlink()
        (self.folder / "code.txt").write_text(str(code))
        if step is not None:
            (self.folder / "step.txt").write_text(str(step))
        (self.job.out / sbatch.FILE).write_text(sbatch.batch_file(self.job))
        known = {"PATH": str(self.folder / "bin"), "RUN": str(self.job.out), "SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "n[1-2]"}
        words = [str(self.folder / "bin" / "bash"), str(self.job.out / sbatch.FILE), *([] if number is None else [str(number)])]
        return subprocess.run(words, env={**known, **(env or {})}, cwd=self.folder, capture_output=True, text=True, timeout=20)

    def called(self, name: str) -> list[str]:
        """The arguments of the last call; none where there was no call."""
        file = self.folder / f"{name}.called"
        return file.read_text().splitlines() if file.exists() else []

    def log(self) -> list[str]:
        return [line.split(" ", 1)[1] for line in (self.job.out / sbatch.LOG).read_text().splitlines()]

    def replace(self, **changes: object) -> Bench:
        return Bench(self.folder, replace(self.job, **changes))  # type: ignore[arg-type]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    folder = tmp_path / "it's a place"
    (folder / "bin").mkdir(parents=True)
    (folder / "runs" / "a run").mkdir(parents=True)
    for name in REAL:
        (folder / "bin" / name).symlink_to(str(shutil.which(name)))
    for name, text in (("srun", SRUN), ("sbatch", SBATCH), ("scontrol", SCONTROL), ("sleep", "#!/bin/bash\n")):
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    command = ("/venv/bin/unisono", "train", "my task.py", "--set", "model.name=it's", "--out", "runs/a run")
    return Bench(folder, Job("a run", folder / "runs" / "a run", folder, command, limit_s=1800))


def lines_for_sbatch(job: Job) -> dict[str, str]:
    rows = [line.removeprefix("#SBATCH --") for line in sbatch.batch_file(job).splitlines() if line.startswith("#SBATCH")]
    return {name: value for name, _, value in (row.split("  #")[0].strip().partition("=") for row in rows)}


def test_done_is_the_end(bench: Bench) -> None:
    done = bench.run(code=0, step=100)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert bench.called("sbatch") == []
    assert bench.log() == ["42 began as number 1 on n[1-2]", "42 ended with exit code 0 at step 100"]


def test_the_training_gets_its_command_and_what_is_left_of_the_job(bench: Bench) -> None:
    bench.run()
    *command, option, limit = bench.called("srun")
    assert command == ["--kill-on-bad-exit=0", *bench.job.command]
    assert option == "--time-limit"
    assert 1700 < int(limit.removesuffix("s")) <= 1800 - sbatch.START_ALLOWANCE_S


def test_stopped_in_time_is_followed_by_a_successor(bench: Bench) -> None:
    done = bench.run(code=75, step=100)
    assert done.returncode == 0, done.stderr
    assert bench.called("sbatch") == ["none", "--parsable", str(bench.job.out / "job.sh"), "2"]
    assert bench.called("scontrol") == []
    assert bench.log()[-1] == "43 submitted as number 2"
    again = bench.run(code=75, step=150, number=2)
    assert again.returncode == 0, again.stderr
    assert bench.called("sbatch")[-1] == "3"


def test_a_failure_ends_the_chain(bench: Bench) -> None:
    done = bench.run(code=1, step=100)
    assert done.returncode == 1
    assert bench.called("sbatch") == []
    assert "the training failed with exit code 1; no further job follows" in done.stderr
    assert bench.log()[-1].startswith("42 stopped: the training failed")


def test_no_progress_ends_the_chain(bench: Bench) -> None:
    assert bench.run(code=75, step=0).returncode == 0, "the first job may need its time to start"
    done = bench.run(code=75, step=0, number=2)
    assert done.returncode == 1
    assert bench.called("sbatch") == []
    assert "two jobs in a row ended at step 0: no progress" in done.stderr


def test_a_training_that_says_nothing_of_its_steps_makes_no_progress(bench: Bench) -> None:
    done = bench.run(code=75)
    assert done.returncode == 1
    assert bench.called("sbatch") == []


def test_the_number_of_jobs_is_bounded(bench: Bench) -> None:
    few = bench.replace(max_jobs=3)
    assert few.run(code=75, step=1, number=2).returncode == 0
    done = few.run(code=75, step=2, number=3)
    assert done.returncode == 75
    assert few.called("sbatch") == []
    assert f"job 3 of at most 3 (--max-jobs); to resume: sbatch '{few.job.out}/job.sh'" in done.stderr


def test_requeue(bench: Bench) -> None:
    same = bench.replace(requeue=True)
    assert same.run(code=75, step=1).returncode == 0
    assert same.called("scontrol") == ["requeue", "42"]
    assert same.called("sbatch") == []
    same.run(code=75, step=2, env={"SLURM_RESTART_COUNT": "1"})
    assert "42 began as number 2 on n[1-2]" in same.log()


@pytest.mark.parametrize("how", ["missing", "refuses"])
def test_where_requeue_is_not_possible_a_successor_follows(bench: Bench, how: str) -> None:
    same = bench.replace(requeue=True)
    if how == "missing":
        (bench.folder / "bin" / "scontrol").unlink()
    else:
        (bench.folder / "scontrol.refuses").touch()
    done = same.run(code=75, step=1, env={"SLURM_RESTART_COUNT": "4"})
    assert done.returncode == 0, done.stderr
    restarts, *arguments = same.called("sbatch")
    assert arguments[-1] == "6"
    assert restarts == "none", "the successor would count the starts of this job as its own"


@pytest.mark.parametrize("how", ["missing", "refuses"])
def test_where_no_successor_can_be_submitted_the_message_has_a_remedy(bench: Bench, how: str) -> None:
    if how == "missing":
        (bench.folder / "bin" / "sbatch").unlink()
    else:
        (bench.folder / "sbatch.refuses").touch()
    done = bench.run(code=75, step=1)
    assert done.returncode == 75
    assert "the checkpoint is saved; to resume: sbatch" in done.stderr


def test_modules_and_preamble_come_before_the_training(bench: Bench) -> None:
    module = 'module() { echo "module $*"; }; export -f module\n'
    there = bench.replace(modules=("python/3.11", "my mpi"), preamble='set -eu\necho "prepared"')
    (there.folder / "functions").write_text(module)
    done = there.run(code=75, step=1, env={"BASH_ENV": str(there.folder / "functions")})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["module load python/3.11", "module load my mpi", "prepared"]
    assert there.log()[-1] == "43 submitted as number 2", "a preamble that is strict does not end the script"


def test_a_module_that_cannot_be_loaded_is_reported(bench: Bench) -> None:
    done = bench.replace(modules=("python/3.11",)).run()
    assert done.returncode == 1
    assert "cannot load the module python/3.11 (site file)" in done.stderr
    assert bench.called("srun") == []


def test_a_container_stands_before_the_command_as_typed(bench: Bench) -> None:
    inside = bench.replace(container="apptainer exec $IMAGE", command=("unisono", "train", "task.py"))
    inside.run(env={"IMAGE": "image.sif"})
    assert inside.called("srun")[1:6] == ["apptainer", "exec", "image.sif", "unisono", "train"]


def test_options_are_lines_for_sbatch(bench: Bench) -> None:
    found = lines_for_sbatch(replace(bench.job, options={"gres": "gpu:4", "exclusive": None, "job-name": "mine", "comment": "a b"}))
    assert found["time"] == "00:30:00"
    assert found["gres"] == "gpu:4"
    assert found["exclusive"] == ""
    assert found["job-name"] == "mine"
    assert found["comment"] == "'a b'"
    assert found["open-mode"] == "append"
    assert found["output"].endswith("slurm-%j.out'")


def test_a_short_job_has_no_signal_that_could_meet_ranks_that_start(bench: Bench) -> None:
    assert "signal" in lines_for_sbatch(bench.job)
    assert "signal" not in lines_for_sbatch(replace(bench.job, limit_s=120))


def test_a_percent_sign_in_the_path_is_no_pattern_of_slurm(bench: Bench) -> None:
    assert "/100%%/slurm-%j.out" in lines_for_sbatch(replace(bench.job, out=Path("/runs/100%")))["output"]


def test_a_line_break_is_refused(bench: Bench) -> None:
    with pytest.raises(UsageError, match="line break"):
        sbatch.batch_file(replace(bench.job, options={"comment": "a\nrm"}))


@pytest.mark.parametrize(
    ("given", "written"), [("30", "00:30:00"), ("1:30", "00:01:30"), ("2h", "02:00:00"), ("2-12", "2-12:00:00")]
)
def test_limits(given: str, written: str) -> None:
    assert sbatch.sbatch_time(sbatch.limit_s(given)) == written


def test_a_limit_in_which_nothing_can_be_trained_is_refused() -> None:
    with pytest.raises(UsageError, match="leaves no time to train"):
        sbatch.limit_s("0:10")


def test_options_after_the_dashes() -> None:
    words = ["--gres=gpu:4", "--mail-type", "END", "--exclusive", "-C", "a100", "-pgpu", "--nice=-5"]
    assert sbatch_options.parse(words) == {
        "gres": "gpu:4",
        "mail-type": "END",
        "exclusive": None,
        "constraint": "a100",
        "partition": "gpu",
        "nice": "-5",
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gpu"], "'gpu' is not an option of sbatch"),
        (["--gres=gpu", "4"], "'4' is not an option of sbatch"),
        (["-Z"], "does not know the short option '-Z'"),
        (["-t", "5"], "--time cannot be passed to sbatch .* before --"),
        (["--array=1-3"], "--array cannot be passed.* one training"),
    ],
)
def test_mistakes_after_the_dashes(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sbatch_options.parse(words)


def test_the_log_reads_what_the_batch_file_writes(bench: Bench) -> None:
    bench.run(code=75, step=100)
    first, second = job_log.read(bench.job.out / sbatch.LOG)
    assert (first.job, first.exit_code) == ("42", 75)
    assert first.began_unix_s is not None and first.ended_unix_s is not None
    assert (second.job, second.began_unix_s, second.last_words) == ("43", None, "submitted as number 2")


def test_the_log_of_a_requeued_job_and_of_a_hasty_one() -> None:
    lines = [
        job_log.event_line(10.0, "7", "began as number 1 on n1"),
        job_log.event_line(10.0, "7", "submitted as number 1"),
        job_log.event_line(20.0, "7", "ended with exit code 75 at step 5"),
        job_log.event_line(30.0, "7", "began as number 2 on n1"),
        "2026-11-1",
        "",
    ]
    first, second = job_log.jobs_of_chain(job_log.parse("".join(lines)))
    assert (first.submitted_unix_s, first.began_unix_s, first.ended_unix_s, first.exit_code) == (10.0, 10.0, 20.0, 75)
    assert (second.job, second.began_unix_s, second.ended_unix_s) == ("7", 30.0, None)


def test_without_a_log_there_is_no_chain(tmp_path: Path) -> None:
    assert job_log.read(tmp_path / "jobs.log") == []
