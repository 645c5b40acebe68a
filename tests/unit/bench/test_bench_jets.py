"""The page and picture of `bench.jets`, and the loop without a communication layer that it compares with."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.groups import GroupFailed
from bench.jets import APART, FORMS, FULL, LOOPS, ONE, PLAIN, ROWS, TWO, after_first, check_same, page_of, run_loops
from bench.ranks.jets_plain import PlainLoop
from tests.numerics.learning import train
from tests.unit.bench.tables import rows_of
from unisono.task.task_file import load_task

TASK = Path(__file__).parents[3] / "examples" / "jedi_net.py"


def of_row(row: str, particles: int, samples_per_s: float, loss: float = 1.5) -> dict[str, Any]:
    found = {"particles": particles, "row": row, "samples_per_s": samples_per_s, "stolen_cpu_s": 0.1}
    if row in LOOPS:
        return {**found, "loops": [{"samples_per_s": samples_per_s / LOOPS[row], "val_loss": loss}] * LOOPS[row]}
    return {**found, "num_parameters": 33_625, "versions": {"torch": "2"}, "epochs": [{"epoch": 1, "val_loss": loss}]}


def of_form(form: str, test: float) -> dict[str, Any]:
    epochs = [{"epoch": number, "val_accuracy": value} for number, value in enumerate((0.5, 0.9), 1)]
    return {"form": form, "wall_s": 50.0, "metrics": {"test_accuracy": test}, "epochs": epochs}


def measured(part: str, **more: Any) -> dict[str, Any]:
    return {
        "command": f"python -m bench.jets {part}",
        "quick": False,
        "machine": {"cores": "2 usable of 2"},
        "sittings": [{"at": "now", "commit": "1", "load": "0.1"}],
        "not_measured": ["much"],
        **more,
    }


def speed() -> dict[str, Any]:
    rows = dict(zip(ROWS, (100, 98, 99, 180, 190), strict=True))
    rounds = [of_row(row, size, value * machine) for size in (16, 100) for machine in (1, 2, 3) for row, value in rows.items()]
    cases = [{"particles": size, "num_jets": 320, "epochs": 3, "rounds": 3} for size in (16, 100)]
    return measured("speed", settings={"cases": cases, "same_loss": 0.05}, runs=rounds)


def accuracy() -> dict[str, Any]:
    settings = {"num_jets": 50_000, "bound_jets": 5000, "workers": 2}
    bound = {"best": 0.935, "error": 0.002}
    runs = [of_form(form, 0.9) for form in FORMS]
    return measured("accuracy", settings=settings, bound=bound, versions={"keras": "3"}, runs=runs)


def test_both_parts_on_one_page(tmp_path: Path) -> None:
    page_of({"speed": speed(), "accuracy": accuracy()}).publish("jets", tmp_path)
    page = (tmp_path / "jets.md").read_text()
    rows = {row[0]: row[1:] for row in rows_of(page)}
    assert rows[PLAIN] == ["200", "1", "-", "1.5000"]
    assert rows[TWO] == ["360", "1.80 [1.80, 1.80]", "1.84 [1.84, 1.84]", "1.5000"], "the machine's own speed cancels in each round"
    assert rows[APART] == ["380", "1.90 [1.90, 1.90]", "-", "-"]
    assert rows["PyTorch"] == ["90.00", "90.00 ± 0.42", "3.50 ± 0.47", "50 s"]
    assert "16 particles: rounds 3, steps to warm up 2, timed 4" in page
    assert "100 particles, 33,625 parameters" in page
    assert (tmp_path / "jets.png").stat().st_size > 10_000


@pytest.mark.parametrize(("name", "part", "missing"), [("speed", speed, "--accuracy"), ("accuracy", accuracy, "bench.jets`")])
def test_one_part_alone_says_that_the_other_is_missing(tmp_path: Path, name: str, part: Any, missing: str) -> None:
    page_of({name: part()}).publish("jets", tmp_path)
    (line,) = [line for line in (tmp_path / "jets.md").read_text().splitlines() if "not measured yet" in line]
    assert missing in line
    assert (tmp_path / "jets.png").exists()


def test_the_first_epoch_does_not_count() -> None:
    assert after_first([1.0, 100.0, 300.0]) == pytest.approx(150.0), "200 samples in 2 s, then 200 in 2/3 s"


def test_a_loop_that_learns_something_else_is_refused() -> None:
    check_same([of_row(PLAIN, 16, 1, loss=1.50), of_row(ONE, 16, 1, loss=1.51)])
    with pytest.raises(GroupFailed, match=r"no communication layer 1\.5000, 1 worker 1\.6000; this is not the same training"):
        check_same([of_row(PLAIN, 16, 1, loss=1.5), of_row(ONE, 16, 1, loss=1.6)])


def test_every_batch_is_a_whole_one() -> None:
    assert all(0.8 * case.num_jets % load_task(str(TASK)).global_batch == 0 for case in FULL)
    assert FULL[1].options()[:4] == ["--epochs", "3", "--set", "model.particles=100"]


def test_the_plain_loop_learns_what_one_worker_learns() -> None:
    size = {"particles": 4, "num_jets": 300}
    loop = PlainLoop(**size, num_epochs=2)
    assert [loop.epoch(number) for number in range(2)] == [240, 240]
    task = load_task(str(TASK))
    of_size = replace(task, epochs=2, model=partial(task.model, particles=4), data=partial(task.data, **size))
    (ours,) = train(of_size)
    torch.testing.assert_close(loop.model.state_dict(), ours.weights)
    assert loop.validation_loss() == pytest.approx(ours.progress.history[-1]["metrics"]["val_loss"], rel=1e-5)


def test_loops_take_their_parts_of_every_batch_without_a_communication_layer() -> None:
    one, other = run_loops([4, 300, 2], 2, 100.0)
    assert one["samples_per_s"] > 0 and one["val_loss"] != other["val_loss"]


def test_loops_that_fail_are_reported() -> None:
    with pytest.raises(GroupFailed, match=r"(?s)plain loops: the start ended with .*ValueError"):
        run_loops([4], 2, 60.0)
