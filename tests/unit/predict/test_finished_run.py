"""What is no finished run is refused by one message that says what to do."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
import torch

from tests.unit.predict.made_runs import make_run
from unisono.errors import UsageError
from unisono.predict.finished_run import FinishedRun, open_run, refuse_idle_workers
from unisono.training.run_folder.run_status import Status, clock_text, read
from unisono.training.run_folder.weights import save_weights

FINAL, BEST = "ff" * 32, "ee" * 32


def write_evaluation(run: FinishedRun, split: str, which: str, weights: str, **metrics: float) -> None:
    found = {"split_sha256": run.summary["split"]["sha256"], "weights_sha256": weights, "metrics": metrics}
    run.evaluation(split, which).write_text(json.dumps(found))


def test_a_finished_run_gives_its_metrics_and_those_of_later_evaluations(tmp_path: Path) -> None:
    run = open_run(make_run(tmp_path / "run", {"test_accuracy": 0.9}, best_weights_sha256=BEST))
    write_evaluation(run, "train", "final", FINAL, train_accuracy=0.95)
    write_evaluation(run, "test", "best", BEST, test_accuracy=0.92)
    write_evaluation(run, "test", "final", FINAL, test_accuracy=0.1)
    assert run.metrics() == {"train_accuracy": 0.95, "best_test_accuracy": 0.92, "test_accuracy": 0.9}


def test_names_without_a_prefix_are_of_the_weights_that_count(tmp_path: Path) -> None:
    run = open_run(make_run(tmp_path / "run", {"test_accuracy": 0.9}, best_weights_sha256=BEST, weights="best"))
    write_evaluation(run, "train", "best", BEST, train_accuracy=0.95)
    write_evaluation(run, "test", "final", FINAL, test_accuracy=0.1)
    assert run.metrics() == {"train_accuracy": 0.95, "final_test_accuracy": 0.1, "test_accuracy": 0.9}


@pytest.mark.parametrize("which", ["best", "final"])
def test_an_evaluation_of_earlier_weights_or_other_samples_is_left_out(which: str, tmp_path: Path) -> None:
    run = open_run(make_run(tmp_path / "run", {}, best_weights_sha256=BEST))
    write_evaluation(run, "test", which, "dd" * 32, test_accuracy=0.9)
    assert (run.metrics(), run.outdated()) == ({}, [run.evaluation("test", which)])
    now = run.sha256(which)
    run.evaluation("test", which).write_text(json.dumps({"split_sha256": "bb" * 32, "weights_sha256": now, "metrics": {"a": 1}}))
    assert run.metrics() == {}


def test_the_best_weights_of_an_earlier_version_have_their_hash_in_their_file(tmp_path: Path) -> None:
    run = open_run(make_run(tmp_path / "run", {}))
    assert run.sha256("best") is None
    digest = save_weights(run.path / "best.safetensors", {"w": torch.ones(3)})
    assert run.sha256("best") == digest
    write_evaluation(run, "test", "best", digest, test_accuracy=0.9)
    assert run.metrics() == {"best_test_accuracy": 0.9}
    save_weights(run.path / "best.safetensors", {"w": torch.zeros(3)})
    assert run.metrics() == {}
    (run.path / "best.safetensors").write_bytes(b"cut short")
    with pytest.raises(UsageError, match=r"best\.safetensors cannot be read .*cut short"):
        run.sha256("best")


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
    with pytest.raises(UsageError, match=r"has no results .*train it, or check the path"):
        open_run(path)


def test_a_run_without_results_is_named_by_its_state(tmp_path: Path) -> None:
    """Of one that is running now: since when, and where."""
    path = Path(make_run(tmp_path / "digits", {}))
    (path / "summary.json").unlink()
    status = Status(path / "status.json", print)
    status.begin(step=4, epoch=0, num_steps=60, num_workers=1)
    begun = clock_text(read(path / "status.json")["lives"][-1]["begin_unix_s"])  # type: ignore[index]
    with pytest.raises(UsageError, match=rf"digits is still running \(since {begun}, on {socket.gethostname()}\)"):
        open_run(path)
    elsewhere = (path / "status.json").read_text().replace(socket.gethostname(), "another-host")
    (path / "status.json").write_text(elsewhere)
    with pytest.raises(UsageError, match="on another-host, seen last "):
        open_run(path)
    status.end("failed", 1, "a reason", step=7)
    with pytest.raises(UsageError, match="it failed at step 7 of 60; run its command again"):
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
