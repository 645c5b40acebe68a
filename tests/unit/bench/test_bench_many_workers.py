"""The judgements and the page of `bench.many_workers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.many_workers import RUNS, fate, page_of, verdicts
from tests.unit.bench.tables import rows_of


def run(algorithm: str, workers: int, *accuracies: float, seed: int = 0, val_loss: float | None = 0.1) -> dict[str, Any]:
    def of_a_clock(number: int) -> dict[str, float]:
        return {"virtual_s": number * 100.0 / workers, "staleness": workers - 1.0, "staleness_max": 2.0 * workers}

    is_virtual = not algorithm.startswith("sgd")
    epochs = [
        {
            "epoch": number,
            "wall_s": number,
            "val_accuracy": value,
            "val_loss": val_loss,
            **(of_a_clock(number) if is_virtual else {}),
        }
        for number, value in enumerate(accuracies, 1)
    ]
    return {
        "algorithm": algorithm,
        "workers": workers,
        "seed": seed,
        "num_skipped_updates": 0,
        "versions": {"torch": "2"},
        "epochs": epochs,
    }


def result(*runs: dict[str, Any]) -> dict[str, Any]:
    return {
        "command": "python -m bench.many_workers",
        "quick": False,
        "machine": {"GPU": "some"},
        "sittings": [{"at": "now", "commit": "1", "load": "9.0"}],
        "settings": {"epochs": 2, "num_train": 60_000, "num_test": 10_000},
        "not_checked": ["much"],
        "runs": list(runs),
    }


def test_the_bound_holds_for_the_last_epoch_not_the_best() -> None:
    downpour = [run("downpour, momentum", 1, 0.99), run("downpour, momentum", 5, 0.1)]
    found = verdicts([run("gem", 100, 0.98, 0.9931), run("gem", 100, 0.9950, 0.9929, seed=1), *downpour])
    assert [bound.verdict for bound in found] == ["holds", "MISSED", "holds"]
    assert "seed 1: 99.29 % after the last epoch" in str(found[1])


@pytest.mark.parametrize(
    ("accuracy", "val_loss", "told"),
    [(0.99, 0.1, ""), (0.98, 0.1, "1.00 points worse"), (0.99, None, "diverges"), (0.1, 2.3, "diverges")],
)
def test_what_becomes_of_downpour(accuracy: float, val_loss: float | None, told: str) -> None:
    found = fate(run("downpour, momentum", 10, accuracy, val_loss=val_loss), run("downpour, momentum", 1, 0.99))
    assert found.startswith(told) and bool(found) == bool(told)


def test_downpour_that_bears_thirty_workers_misses_the_bound() -> None:
    (found,) = verdicts([run("downpour, momentum", workers, 0.99) for workers in (1, 5, 30)])
    assert (found.verdict, found.found) == ("MISSED", "5 workers: as good as one, 30 workers: as good as one")


def test_page_and_picture(tmp_path: Path) -> None:
    runs = [
        run("gem", 100, 0.98, 0.9940, 0.9935),
        run("downpour, momentum", 1, 0.98, 0.99, 0.99),
        run("downpour, momentum", 30, 0.1, 0.1, val_loss=None),
        run("sgd, momentum", 1, 0.99, 1.0, 1.0),
    ]
    page_of(result(*runs)).publish("many_workers", tmp_path)
    page = (tmp_path / "many_workers.md").read_text()
    rows = rows_of(page)
    assert rows[2] == ["gem", "100", "0", "99.0", "200", "3 s", "98.00", "99.35", "99.40 (epoch 2)", "0"]
    assert rows[4][7] == "10.00 (2)", "a run with fewer epochs says so"
    assert rows[5][3:6] == ["-", "-", "-"]
    assert "busy" not in page, "no times are measured"
    assert (tmp_path / "many_workers.png").stat().st_size > 10_000


def test_every_run_has_a_name_of_its_own() -> None:
    assert len({one.name for one in RUNS}) == len(RUNS)
    hundred = next(one for one in RUNS if one.workers == 100)
    assert " ".join(hundred.options()) == (
        "--algorithm gem --set optimizer.momentum=0.9 --simulate 100 --local-batch 64 --lr 0.05 --on-nan skip --seed 0"
    )
