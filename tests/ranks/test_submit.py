"""`unisono submit` on a real SLURM: a training that goes on by itself, job after job, and how such a chain ends.

Most jobs run a stand-in for the training that takes one step and stops: how jobs follow each other is what is tested here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.system.processes import within
from tests.system.slurm import SlurmCluster

pytestmark = pytest.mark.slurm

UNISONO = str(Path(sys.executable).parent / "unisono")
DIGITS = str(Path(__file__).resolve().parents[2] / "examples" / "digits.py")
LIMIT_S = 100.0
REQUEUE_S = 400

STAND_IN = f"""#!{sys.executable}
# A training of three steps that takes one of them in each attempt, or waits where it finds the file `wait`.
import os, pathlib, signal, sys, time
from unisono.training.run_folder.run_status import Status, read

out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
before = read(out / "status.json")
step = before["step"] if before else 0
if os.environ["SLURM_PROCID"] != "0":
    sys.exit(0)  # the highest exit code counts
asked = []
for signum in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(signum, lambda signum, frame: asked.append(signum))
status = Status(out / "status.json", print)
status.begin(step, 0, 3, int(os.environ["SLURM_NTASKS"]), os.environ["SLURM_JOB_ID"])
while (out / "wait").exists() and not asked:
    time.sleep(0.05)
done = step + 1 == 3
status.end("finished" if done else "stopped", 0 if done else 75, "all epochs" if done else "time limit", step + 1, 0)
sys.exit(0 if step + 1 == 3 else 75)
"""


@dataclass(frozen=True)
class SubmitFolder:
    """A folder with a space in its name, in which trainings are stood in for, and the cluster that runs them."""

    folder: Path
    cluster: SlurmCluster

    @property
    def run(self) -> Path:
        return self.folder / "runs" / "digits"

    def unisono(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [UNISONO, *words], env=self.cluster.environment, cwd=self.folder, capture_output=True, text=True, timeout=LIMIT_S
        )
        assert done.returncode == code, f"{words} ended with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def submit(self, *words: str) -> None:
        self.unisono("submit", DIGITS, "--time", "1", "--site", "site.toml", *words)

    def status(self) -> Mapping[str, Any]:
        (found,) = json.loads(self.unisono("status", "runs/digits", "--json"))
        return dict(found)

    def wait_for(self, state: str) -> Mapping[str, Any]:
        assert within(LIMIT_S, lambda: self.status()["state"] == state), f"{self.status()}\n{self.printed()}"
        return self.status()

    def printed(self) -> str:
        return "\n".join(file.read_text(errors="replace") for file in sorted(self.run.glob("*.out")))


@pytest.fixture
def submit_folder(slurm_cluster: SlurmCluster, tmp_path: Path) -> SubmitFolder:
    folder = tmp_path / "a place"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "unisono").write_text(STAND_IN)
    (folder / "bin" / "unisono").chmod(0o755)
    (folder / "site.toml").write_text(f"""container = 'env PATH="{folder / "bin"}:{os.defpath}"'\n""")
    return SubmitFolder(folder, slurm_cluster)


def test_a_chain_continues_until_the_training_is_done(submit_folder: SubmitFolder) -> None:
    submit_folder.submit("--nodes", "2")
    done = submit_folder.wait_for("finished")
    assert [(life["first_step"], life["last_step"], life["num_workers"]) for life in done["lives"]] == [
        (0, 1, 2),
        (1, 2, 2),
        (2, 3, 2),
    ]
    jobs = [life["job"] for life in done["lives"]]
    assert len(set(jobs)) == 3, "three jobs, one after the other"
    assert within(LIMIT_S, lambda: not submit_folder.cluster.ask("squeue", "--noheader"))
    assert [job["job"] for job in submit_folder.status()["jobs"]] == jobs, "and none after the last"


@pytest.mark.soak
@pytest.mark.timeout(2 * REQUEUE_S)
def test_a_job_that_is_requeued(submit_folder: SubmitFolder) -> None:
    """SLURM holds a job for two minutes before it starts again. Where it was made to start earlier (by `StartTime=now`) it
    was seen to vanish now and then, so this waits as users do."""
    submit_folder.submit("--requeue")
    assert within(REQUEUE_S, lambda: submit_folder.status()["state"] == "finished"), (
        f"{submit_folder.status()}\n{submit_folder.printed()}"
    )
    done = submit_folder.status()
    assert [life["last_step"] for life in done["lives"]] == [1, 2, 3]
    assert len({life["job"] for life in done["lives"]}) == 1, "it is the same job"
    assert (submit_folder.run / "jobs.log").read_text().count("requeues itself") == 2


def test_scancel_ends_the_chain_and_submitting_again_resumes(submit_folder: SubmitFolder) -> None:
    submit_folder.run.mkdir(parents=True)
    (submit_folder.run / "wait").touch()
    submit_folder.submit("--out", "runs/digits")
    job = submit_folder.wait_for("running")["job"]
    said = submit_folder.unisono("submit", DIGITS, "--time", "1", "--out", "runs/digits", code=2)
    assert f"job {job} (RUNNING) of runs/digits is already in the queue" in said
    submit_folder.cluster.ask("scancel", str(job))
    assert within(LIMIT_S, lambda: not submit_folder.cluster.ask("squeue", "--noheader"))
    (submit_folder.run / "wait").unlink()
    stopped = submit_folder.status()
    assert (stopped["state"], stopped["step"], len(stopped["jobs"])) == ("stopped", 1, 1)
    submit_folder.submit("--out", "runs/digits")
    done = submit_folder.wait_for("finished")
    assert [life["last_step"] for life in done["lives"]] == [1, 2, 3]


def test_a_job_that_receives_a_stop_signal_is_resumed_by_the_next(submit_folder: SubmitFolder) -> None:
    submit_folder.run.mkdir(parents=True)
    (submit_folder.run / "wait").touch()
    submit_folder.submit("--out", "runs/digits")
    job = submit_folder.wait_for("running")["job"]
    submit_folder.cluster.ask("scancel", "--signal=USR1", str(job))
    assert within(LIMIT_S, lambda: submit_folder.status()["job"] not in (None, job)), (
        f"{submit_folder.status()}\n{submit_folder.printed()}"
    )
    (submit_folder.run / "wait").unlink()
    assert [life["last_step"] for life in submit_folder.wait_for("finished")["lives"]] == [1, 2, 3]


def test_a_real_training_in_one_job(submit_folder: SubmitFolder) -> None:
    (submit_folder.folder / "site.toml").write_text("")
    submit_folder.submit("--nodes", "2", "--epochs", "1", "--quiet")
    done = submit_folder.wait_for("finished")
    assert done["lives"][0]["num_workers"] == 2
    assert json.loads((submit_folder.run / "summary.json").read_text())["num_workers"] == 2
    assert "finished" in submit_folder.unisono("status", "runs")
