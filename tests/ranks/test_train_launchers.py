"""A training gives the same metrics and the same bits whoever starts its two workers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.system.processes import plain_environment, run_together
from tests.system.slurm import SlurmCluster

BIN = Path(sys.executable).parent
UNISONO, MPIRUN = (str(BIN / name) for name in ("unisono", "mpirun"))
DIGITS = str(Path(__file__).resolve().parents[2] / "examples" / "digits.py")
AS_ROOT = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
LIMIT_S = 100.0


def trained(out: Path, *before: str, options: tuple[str, ...] = (), environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The summary of two short epochs, started by what stands `before` the command. One thread in each worker, as on some
    processors products round otherwise with two, which a worker alone on its node would have."""
    command = [*before, UNISONO, "train", DIGITS, "--epochs", "2", "--threads", "1", "--out", str(out), *options]
    (outcome,) = run_together([command], environment or plain_environment(), LIMIT_S)
    assert outcome.code == 0, str(outcome)
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    assert outcome.output.count("finished: 40 steps") == 1, f"one rank speaks:\n{outcome}"
    assert summary["num_workers"] == 2
    assert summary["replicas_equal"] is True
    return summary


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return trained(tmp_path_factory.mktemp("ours") / "run", options=("-n", "2"))


def check_same(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    assert theirs["weights_sha256"] == ours["weights_sha256"]
    assert theirs["metrics"] == ours["metrics"]
    assert theirs["steps"] == ours["steps"] == 40


def test_our_launcher(ours: Mapping[str, Any]) -> None:
    assert ours["engine"] == "shm"
    assert ours["metrics"]["val_accuracy"] > 0.5


def test_mpirun(ours: Mapping[str, Any], tmp_path: Path) -> None:
    theirs = trained(tmp_path / "run", MPIRUN, *AS_ROOT, "--oversubscribe", "-n", "2")
    check_same(ours, theirs)


def test_mpi_itself(ours: Mapping[str, Any], tmp_path: Path) -> None:
    theirs = trained(tmp_path / "run", MPIRUN, *AS_ROOT, "--oversubscribe", "-n", "2", options=("--engine", "mpi"))
    assert theirs["engine"] == "mpi"
    check_same(ours, theirs)


@pytest.mark.slurm
def test_srun_on_two_nodes(ours: Mapping[str, Any], slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    theirs = trained(tmp_path / "run", "srun", "-N2", "-n2", environment=slurm_cluster.environment)
    assert theirs["engine"] == "gloo"
    check_same(ours, theirs)


def test_a_number_of_workers_that_mpirun_does_not_give_is_refused(tmp_path: Path) -> None:
    command = [MPIRUN, *AS_ROOT, "--oversubscribe", "-n", "2", UNISONO, "train", DIGITS, "-n", "3", "--out", str(tmp_path / "run")]
    (outcome,) = run_together([command], plain_environment(), LIMIT_S)
    assert outcome.code == 2, str(outcome)
    assert outcome.output.count("-n requests 3 workers, but 2 were started") == 1, str(outcome)
    assert not (tmp_path / "run").exists()
