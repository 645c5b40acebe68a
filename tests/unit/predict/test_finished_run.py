"""What is no finished run is refused by one message that says what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.predict.made_runs import make_run
from unisono.errors import UsageError
from unisono.predict.finished_run import open_run, refuse_idle_workers


def test_a_finished_run_gives_its_metrics_and_those_of_later_evaluations(tmp_path: Path) -> None:
    run = open_run(make_run(tmp_path / "run", {"test_accuracy": 0.9}))
    run.evaluation("train", "final").write_text(json.dumps({"metrics": {"train_accuracy": 0.95}}))
    run.evaluation("test", "best").write_text(json.dumps({"metrics": {"test_accuracy": 0.92}}))
    run.evaluation("test", "final").write_text(json.dumps({"metrics": {"test_accuracy": 0.1}}))
    assert run.metrics() == {"train_accuracy": 0.95, "best_test_accuracy": 0.92, "test_accuracy": 0.9}


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    path = Path(make_run(tmp_path / "digits", {}))
    with pytest.raises(UsageError, match=r"there is no run directory .*digitz; did you mean .*digits\?"):
        open_run(tmp_path / "digitz")
    with pytest.raises(UsageError, match=r"not a run directory \(it has no config\.json\)"):
        open_run(tmp_path)
    with pytest.raises(UsageError, match="it is a file"):
        open_run(path / "config.json")
    (path / "summary.json").write_text('{"metrics": ')
    with pytest.raises(UsageError, match=r"summary\.json cannot be read"):
        open_run(path)
    (path / "summary.json").unlink()
    with pytest.raises(UsageError, match="unfinished run"):
        open_run(path)


def test_missing_weights_are_reported(tmp_path: Path) -> None:
    run = open_run(make_run(tmp_path / "run", {}))
    with pytest.raises(UsageError, match="has lost its weights"):
        run.weights("final")
    with pytest.raises(UsageError, match=r"no best weights.*--weights final"):
        run.weights("best")


def test_parts_and_workers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    run = open_run(make_run(tmp_path / "run", {}, split="ab"))
    refuse_idle_workers(359, run.num_samples("test"))
    with pytest.raises(UsageError, match=r"360 workers .* 359 samples"):
        refuse_idle_workers(360, run.num_samples("test"))
    with pytest.raises(UsageError, match=r"has no unlabelled data.*train, validation, test"):
        run.num_samples("unlabelled")
