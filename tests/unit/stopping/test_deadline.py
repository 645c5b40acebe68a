"""Limits: the moment at which a run must stop to be saved before them."""

from __future__ import annotations

import re
from pathlib import Path
from time import localtime, monotonic, strftime, time

import pytest

from tests.unit.cluster import environments as envs
from unisono.stopping.deadline import STEP_DECAY, Allocation, Deadline, allocation_from_environment, allocation_from_slurm

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
CLOSE_S = 30.0
"""More than a slow machine takes between two lines; less than what the tests tell apart."""


# ---- the allocation -------------------------------------------------------------------------------------------------------


def test_slurm_gives_the_end_of_the_job() -> None:
    found = allocation_from_environment({**envs.srun(0), "SLURM_JOB_END_TIME": "1794743110"})
    assert found == Allocation(1794743110.0, "SLURM job 2")
    assert allocation_from_environment({"SLURM_JOB_END_TIME": "1794743110"}).owner == "SLURM job"


def test_without_a_scheduler_there_is_no_end() -> None:
    assert (
        allocation_from_environment({})
        == allocation_from_environment(envs.srun(0))
        == allocation_from_environment({"SLURM_JOB_END_TIME": ""})
        == Allocation()
    )


@pytest.mark.parametrize("text", ["soon", "-1", "0", "1e9", "nan", "12", "9" * 30, "1794743110.5"])
def test_an_impossible_end_is_ignored(text: str) -> None:
    found = allocation_from_environment({"SLURM_JOB_END_TIME": text})
    assert found.end_unix_s is None and f"received {text!r}" in found.note
    assert not Deadline(None, time(), found).describe()


def with_squeue(folder: Path, body: str) -> dict[str, str]:
    """A job of a SLURM that leaves the environment silent, with a stand-in for its command."""
    program = folder / "squeue"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return {**envs.srun(0), "PATH": f"{folder}:/usr/bin:/bin"}


@pytest.mark.parametrize(("left", "seconds"), [("1:30", 90.0), ("1:00:00", HOUR_S), ("2-00:00:01", 2 * DAY_S + 1)])
def test_squeue_gives_the_end_where_the_environment_does_not(left: str, seconds: float, tmp_path: Path) -> None:
    env = with_squeue(tmp_path, f'[ "$*" = "--noheader --jobs=2 --format=%L" ] && echo {left}')
    found = allocation_from_slurm(env)
    assert found.owner == "SLURM job 2" and not found.note
    assert found.end_unix_s == pytest.approx(time() + seconds, abs=CLOSE_S)
    assert allocation_from_slurm({**env, "SLURM_JOB_END_TIME": "1794743110"}).end_unix_s == 1794743110.0


@pytest.mark.parametrize(
    ("body", "note"),
    [
        ("echo UNLIMITED", ""),
        ("echo NOT_SET", "(squeue says 'NOT_SET')"),
        ("echo slurm_load_jobs error: Invalid job id >&2; exit 1", "(squeue says 'slurm_load_jobs error: Invalid job id')"),
    ],
)
def test_squeue_knows_no_end(body: str, note: str, tmp_path: Path) -> None:
    found = allocation_from_slurm(with_squeue(tmp_path, body))
    assert found.end_unix_s is None and bool(found.note) is bool(note) and note in found.note


def test_without_squeue_there_is_no_end(tmp_path: Path) -> None:
    assert allocation_from_slurm({"PATH": str(tmp_path)}) == Allocation()
    assert "squeue is not on the PATH" in allocation_from_slurm({**envs.srun(0), "PATH": str(tmp_path)}).note


# ---- the moment -----------------------------------------------------------------------------------------------------------


def test_without_limits_it_is_never_due() -> None:
    deadline = Deadline(None, time(), Allocation())
    deadline.step_took(1e6)
    deadline.save_took(1e6)
    assert not deadline.is_due() and deadline.fits(1e9) and deadline.describe() == ""


def test_the_limit_counts_from_the_beginning() -> None:
    assert Deadline(60.0, time() - 120).is_due()
    fresh = Deadline(HOUR_S, time() - HOUR_S / 2)
    assert not fresh.is_due()
    assert fresh.fits(HOUR_S / 2 - 5 - CLOSE_S) and not fresh.fits(HOUR_S / 2)


@pytest.mark.parametrize(("limit_s", "end_s", "why"), [(60, 90, "time limit"), (90, 60, "end of SLURM job 2")])
def test_the_earlier_end_counts(limit_s: float, end_s: float, why: str) -> None:
    deadline = Deadline(limit_s * 60, time(), Allocation(time() + end_s * 60, "SLURM job 2"))
    assert deadline.reason == why
    assert deadline.is_due(monotonic() + HOUR_S) and not deadline.is_due(monotonic() + HOUR_S - 5 - CLOSE_S)


def test_the_margin_follows_what_was_measured() -> None:
    deadline = Deadline(HOUR_S, time())
    assert deadline.margin_s == 5.0
    deadline.step_took(1000.0)
    assert deadline.margin_s == 5.0, "the first step also loads and compiles"
    deadline.step_took(1.0)
    assert deadline.margin_s == 8.0
    deadline.save_took(10.0)
    deadline.save_took(2.0)
    assert deadline.margin_s == 28.0
    for _ in range(1000):
        deadline.step_took(0.1)
    assert deadline.margin_s == pytest.approx(25.0 + 3 * STEP_DECAY**1000)
    for _ in range(2000):
        deadline.step_took(0.1)
    assert 25.3 <= deadline.margin_s < 25.302


def test_a_longer_save_makes_it_due_earlier() -> None:
    deadline = Deadline(HOUR_S, time())
    later = monotonic() + HOUR_S / 2
    assert not deadline.is_due(later)
    deadline.save_took(HOUR_S / 4)
    assert deadline.is_due(later)


def test_a_short_limit_has_a_short_margin() -> None:
    assert Deadline(20.0, time()).margin_s == pytest.approx(2.0)
    assert Deadline(None, time(), Allocation(time() + 30, "SLURM job 2")).margin_s == pytest.approx(3.0, abs=0.5)


def test_an_evaluation_must_fit_before_it_is_due() -> None:
    deadline = Deadline(HOUR_S, time())
    assert deadline.fits_evaluation(), "the first has no measure yet"
    deadline.evaluation_took(600.0)
    deadline.evaluation_took(60.0)
    now = monotonic()
    assert deadline.fits_evaluation(now + HOUR_S - 600 - 5 - CLOSE_S) and not deadline.fits_evaluation(now + HOUR_S - 600)
    assert deadline.margin_s == 5.0


def test_it_says_when_and_why() -> None:
    began = time()
    deadline = Deadline(None, began, Allocation(began + 30 * DAY_S, "SLURM job 2"))
    moment = strftime("%Y-%m-%d %H:%M:%S", localtime(began + 30 * DAY_S - 5))
    parts = re.fullmatch(r"stops at (.+), (\d+) s before the end of SLURM job 2 \((.+)\)", deadline.describe())
    assert parts is not None and parts.groups()[1:] == ("5", "nothing was saved yet")
    assert abs(_seconds_of(parts[1]) - _seconds_of(moment)) <= 1
    deadline.save_took(3.14)
    deadline.step_took(9.0)
    deadline.step_took(0.2)
    assert deadline.describe().endswith(" 12 s before the end of SLURM job 2 (saving took at most 3.1 s, a step 0.2 s)")
    assert " before the limit of 1h30m (--time-limit) (" in Deadline(5400, began).describe()


def _seconds_of(moment: str) -> int:
    hours, minutes, seconds = moment.split()[1].split(":")
    return int(hours) * 3600 + int(minutes) * 60 + int(seconds)
