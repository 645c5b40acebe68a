"""A search on ranks that somebody else has started: one coordinates, the others make blocks, and one of them speaks.

Every rank that trains loads PyTorch, so thirteen take about a minute on two cores: `make test` has five, by our own launcher.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.system.processes import Program, plain_environment, run_together, within
from tests.system.slurm import SlurmCluster
from tests.system.studies import UNISONO, all_ended_once, first_steps, records, written_task
from unisono.tuning.study.study import BEGAN, COMPLETE, GIVEN_BACK, JOB

MPIRUN = str(Path(sys.executable).parent / "mpirun")
AS_ROOT = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
LIMIT_S = 400.0
STOPPED_CODE = 75
FIVE = "5 ranks: 2 trials at a time on 2 ranks each; rank 0 only coordinates"
THIRTEEN = "13 ranks: 2 trials at a time on 6 ranks each (3 workers per model, 2 folds at a time); rank 0 only coordinates"
BY_THIRTEEN = ("--workers", "3", "--parallel-folds", "2", "--folds", "2")

pytestmark = pytest.mark.timeout(LIMIT_S + 30)


def searched(
    folder: Path, before: list[str], options: tuple[str, ...], layout: str, environment: Mapping[str, str] | None = None
) -> Path:
    """Two short trials by what stands `before` the command, one on each block."""
    study = folder / "study"
    given = ["--trials", "2", "--epochs", "1", "--threads", "1", "--out", str(study), *options]
    command = [*before, "tune", written_task(folder), *given]
    hold = folder / "hold"
    hold.touch()
    with Program(command, environment or plain_environment()) as program:
        within(LIMIT_S, lambda: program.is_over() or blocks_of(study) == {"0", "1"})
        hold.unlink()
        outcome = program.finish(LIMIT_S)
    assert outcome.code == 0, str(outcome)
    assert blocks_of(study) == {"0", "1"}
    for text in (layout, "done: 2 complete", "best: trial ", "trial 0: ", "trial 1: "):
        assert outcome.output.count(text) >= 1, f"{text!r} is missing\n{outcome}"
    assert outcome.output.count(layout) == outcome.output.count("done: 2 complete") == 1, f"one rank speaks:\n{outcome}"
    assert {result.state for result in all_ended_once(study, 2).values()} == {COMPLETE}
    assert len(records(study, JOB)) == 1
    return study


def blocks_of(study: Path) -> set[str]:
    """Which have begun a trial."""
    return {one["who"].partition("/")[2] for one in records(study, BEGAN)}


def expect_workers(study: Path, num_workers: int, num_folds: int) -> None:
    summaries = [file.read_text() for file in sorted((study / "trials").glob("*/*/summary.json"))]
    assert len(summaries) == 2 * num_folds
    for text in summaries:
        assert f'"num_workers": {num_workers}' in text and '"replicas_equal": true' in text


def test_our_launcher_with_two_blocks(tmp_path: Path) -> None:
    study = searched(tmp_path, [UNISONO, "run", "-n", "5", "-m", "unisono"], ("--workers", "2"), FIVE)
    expect_workers(study, 2, 1)


def test_a_signal_to_all_ranks_saves_and_gives_back(tmp_path: Path) -> None:
    """A launcher, or SLURM, tells every rank; the one that coordinates decides, and the others wait for it."""
    study, slow = tmp_path / "study", tmp_path / "slow"
    options = ("tune", written_task(tmp_path), "--trials", "2", "--epochs", "30", "--out", str(study))
    slow.touch()
    with Program([UNISONO, "run", "-n", "2", "-m", "unisono", *options], plain_environment()) as program:
        assert within(LIMIT_S, lambda: program.is_over() or first_steps(study, 0) == first_steps(study, 1) == [0])
        program.send(signal.SIGTERM)
        outcome = program.finish(LIMIT_S)
    assert outcome.code == STOPPED_CODE, str(outcome)
    assert {one["reason"] for one in records(study, GIVEN_BACK)} == {"SIGTERM"}, str(outcome)
    assert len(records(study, GIVEN_BACK)) == len(records(study, BEGAN)) == 2
    slow.unlink()
    (outcome,) = run_together([[UNISONO, *options, "-n", "2"]], plain_environment(), LIMIT_S)
    assert outcome.code == 0, str(outcome)
    all_ended_once(study, 2)
    for trial in (0, 1):
        first, again = first_steps(study, trial)
        assert first == 0 < again, "it goes on from its checkpoint"


def test_a_mistake_that_several_ranks_see_is_reported_by_one(tmp_path: Path) -> None:
    file = Path(written_task(tmp_path))
    file.write_text(file.read_text().replace("return un.split(", "un.split("))
    options = ("tune", str(file), "--trials", "3", "--out", str(tmp_path / "study"))
    ranks = [UNISONO, "run", "-n", "3", "--on-failure", "continue", "-m", "unisono"]
    (outcome,) = run_together([[*ranks, *options]], plain_environment(), LIMIT_S)
    assert outcome.code == 2, str(outcome)
    assert outcome.output.count("data of the task must return un.Splits") == 1, str(outcome)
    assert "[0] unisono: error: data of the task must return" in outcome.output, str(outcome)


def test_an_error_on_another_rank_alone_is_reported_and_the_others_continue(tmp_path: Path) -> None:
    file, study = Path(written_task(tmp_path)), tmp_path / "study"
    file.write_text(f"import os\n\nif os.environ['UNISONO_RANK'] == '1':\n    raise ValueError('only here')\n{file.read_text()}")
    options = ("tune", str(file), "--trials", "3", "--epochs", "1", "--out", str(study))
    ranks = [UNISONO, "run", "-n", "2", "--on-failure", "continue", "-m", "unisono"]
    hold, said = tmp_path / "hold", tmp_path / "said"
    hold.touch()  # else rank 0 may have done it all before rank 1 has loaded the file
    said.touch()
    with Program(["sh", "-c", f'exec "$@" > {said} 2>&1', "sh", *ranks, *options], plain_environment()) as program:
        within(LIMIT_S, lambda: program.is_over() or "block 1 lost 1 of its 1 processes" in said.read_text())
        hold.unlink()
        program.finish(LIMIT_S)
    output = said.read_text()
    assert output.count("ValueError: only here") == 1, output
    assert "block 1 lost 1 of its 1 processes" in output and "done: 3 complete" in output, output
    assert {result.state for result in all_ended_once(study, 3).values()} == {COMPLETE}


@pytest.mark.soak
def test_our_launcher_with_thirteen_ranks(tmp_path: Path) -> None:
    study = searched(tmp_path, [UNISONO, "run", "-n", "13", "-m", "unisono"], BY_THIRTEEN, THIRTEEN)
    expect_workers(study, 3, 2)


@pytest.mark.soak
def test_mpirun_with_thirteen_ranks(tmp_path: Path) -> None:
    study = searched(tmp_path, [MPIRUN, *AS_ROOT, "--oversubscribe", "-n", "13", UNISONO], BY_THIRTEEN, THIRTEEN)
    expect_workers(study, 3, 2)


@pytest.mark.soak
@pytest.mark.slurm
def test_srun_with_thirteen_ranks_on_three_nodes(slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    environment = {**slurm_cluster.environment, "UNISONO_TOKEN": "shared by nodes without a common home"}
    study = searched(tmp_path, ["srun", "-N3", "-n13", "-O", UNISONO], BY_THIRTEEN, THIRTEEN, environment)
    expect_workers(study, 3, 2)
