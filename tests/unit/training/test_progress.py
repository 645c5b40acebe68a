"""How far a training is, and how another attempt takes it up."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from unisono.training.early_stopping import Goals
from unisono.training.progress import EARLY, FINISHED, INTERRUPTED, NOT_FINITE, TARGET, Progress

GOALS = Goals(num_epochs=5, monitor="val_accuracy", target=0.9, patience=2)


def trained(*values: float, monitor: str = "val_accuracy") -> Progress:
    """After an epoch for each of the values."""
    done = Progress(monitor=monitor)
    for value in values:
        if GOALS.better(value, done.best_value):
            done.keep_best(value)
        done.finish_epoch({"metrics": {monitor: value}, "wall_s": 10.0 * (done.epoch + 1)}, GOALS)
    return done


def test_the_first_reason_counts_but_a_failure() -> None:
    done = Progress()
    done.stop(INTERRUPTED)
    done.stop(FINISHED)
    assert done.reason == INTERRUPTED
    done.fail("loss of step 3")
    assert (done.reason, done.failure) == (NOT_FINITE, "loss of step 3")


def test_an_epoch_ends_by_the_goals() -> None:
    assert trained(0.2, 0.4).reason == ""
    assert trained(0.4, 0.3, 0.2).reason == EARLY
    done = trained(0.4, 0.95)
    assert (done.reason, done.epoch, done.best_epoch, done.time_to_target_s) == (TARGET, 2, 1, 20.0)


def test_it_is_resumed_with_other_goals() -> None:
    """Its own epochs are judged by the new goals: values of another metric are none of theirs."""
    done = trained(0.4, 0.95)
    assert done.for_resume(GOALS, same_batches=True) == done
    more = done.for_resume(Goals(5, "val_accuracy", target=0.99), same_batches=True)
    assert (more.reason, more.time_to_target_s, more.best_value) == ("", None, 0.95)
    other = done.for_resume(Goals(5, "val_loss", higher_is_better=False), same_batches=True)
    assert (other.reason, other.monitor, other.best_epoch, other.best_value) == ("", "val_loss", None, None)


def test_patience_begins_anew_with_another_monitor() -> None:
    """The weights of earlier epochs are gone, so none of them can be the best."""
    goals = Goals(9, "val_loss", higher_is_better=False, patience=2)
    done = trained(0.4, 0.3, 0.2).for_resume(goals, same_batches=True)
    reasons = []
    for loss in (0.5, 0.6, 0.7):
        if goals.better(loss, done.best_value):
            done.keep_best(loss)
        done.finish_epoch({"metrics": {"val_loss": loss}, "wall_s": 1.0}, goals)
        reasons.append(done.reason)
    assert (reasons, done.best_epoch) == (["", "", EARLY], 3)
    assert Progress(**asdict(done)) == done


def test_patience_of_another_monitor_without_values_counts_from_the_change() -> None:
    goals = Goals(9, "val_loss", higher_is_better=False, patience=1)
    done = trained(0.4, 0.3).for_resume(goals, same_batches=True)
    reasons = []
    for _ in range(2):
        done.finish_epoch({"metrics": {"val_loss": float("nan")}, "wall_s": 1.0}, goals)
        reasons.append(done.reason)
    assert reasons == ["", EARLY]


def test_a_run_of_an_earlier_version_keeps_the_final_weights() -> None:
    goals, done = Goals(5, "val_accuracy", weights="best"), trained(0.4, 0.3)
    assert done.for_resume(goals, same_batches=True).weights_that_count == "final"
    assert done.for_resume(replace(goals, names_weights=True), same_batches=True).weights_that_count == "best"
    begun = replace(done, weights="final").for_resume(goals, same_batches=True)
    assert begun.weights_that_count == "best"
    assert replace(begun, best_epoch=None).weights_that_count == "final"


@pytest.mark.parametrize("same_batches", [True, False])
def test_an_epoch_in_progress_resumes_or_starts_again(same_batches: bool) -> None:
    done = trained(0.95)
    done.count_step(0)
    done.count_step(1)
    resumed = done.for_resume(GOALS, same_batches)
    assert resumed.step_in_epoch == (2 if same_batches else 0)
    assert resumed.reason == ("" if same_batches else TARGET), "the goal was reached by the epoch before"


def test_files_keep_its_form() -> None:
    """Names in progress.json."""
    names = "step epoch step_in_epoch history monitor best_epoch best_value num_skipped train_s wall_s num_samples data_wait_s"
    assert list(asdict(Progress())) == [*names.split(), "time_to_target_s", "reason", "failure", "weights", "compared_from"]
