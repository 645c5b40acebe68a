"""The judgements and pages of `bench.asynchronous`, and how its trainings are started and ended."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench import asynchronous, asynchronous_link
from bench.asynchronous import ENTRIES
from bench.groups import GroupFailed
from bench.trainings import kept, side_by_side, time_to, trained
from tests.unit.bench.tables import rows_of, verdicts_of


def run(algorithm: str, seed: int, accuracies: Sequence[float], epoch_s: float = 1.0, **more: float) -> dict[str, Any]:
    epochs = [
        {"epoch": number, "wall_s": number * epoch_s, "samples_per_s": 128 / epoch_s, "val_accuracy": value, **more}
        for number, value in enumerate(accuracies, 1)
    ]
    return {"algorithm": algorithm, "seed": seed, "global_batch": 128, "versions": {"torch": "2"}, "epochs": epochs}


def result(runs: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    settings = {"workers": 4, "seeds": [0, 1], "num_train": 12_000, "num_test": 10_000, "epochs": 2, "batch": 64, "target": 0.96}
    return {
        "command": "python -m bench.asynchronous",
        "quick": False,
        "machine": {"cores": "2 usable of 2"},
        "sittings": [{"at": "now", "commit": "1", "load": "0.1"}],
        "settings": {**settings, "options": {"allreduce": ["--lr", "0.05"]}},
        "synchronous": "allreduce",
        "not_measured": ["much"],
        "runs": runs,
        **more,
    }


def test_half_a_point_below_synchronous_training(tmp_path: Path) -> None:
    runs = [
        *(run("allreduce", seed, (0.95, 0.985)) for seed in (0, 1)),
        *(run("gem", seed, (0.97, last), 2.0, staleness=3.0, staleness_max=7.0) for seed, last in enumerate((0.979, 0.983))),
        *(run("downpour", seed, (0.90, 0.979)) for seed in (0, 1)),
    ]
    asynchronous.page_of(result(runs)).publish("asynchronous", tmp_path)
    page = (tmp_path / "asynchronous.md").read_text()
    assert ["gem", "0.40 points below allreduce", "at most 0.5", "**holds**"] in rows_of(page)
    assert ["downpour", "0.60 points below allreduce", "at most 0.5", "**MISSED**"] in rows_of(page)
    assert "1 of 2 bounds hold." in page
    rows = {cells[0]: cells[1:] for cells in reversed(rows_of(page))}
    assert rows["gem"] == ["98.10 [97.90, 98.30]", "0.40", "3.00", "7", "2.0 [2.0, 2.0] s", "4.0 [4.0, 4.0] s"]
    assert rows["allreduce"][1:4] == ["-", "-", "-"]
    assert (tmp_path / "asynchronous.png").stat().st_size > 10_000


def test_curves_are_means_over_seeds() -> None:
    curve = asynchronous.mean_curve("gem", [run("gem", 0, (0.9, 0.98)), run("gem", 1, (0.8, 0.96), 3.0)], "wall_s")
    assert curve.x == pytest.approx([2.0, 4.0])
    assert curve.y == pytest.approx([85.0, 97.0])


def test_a_run_below_the_target_at_its_end_has_not_reached_it() -> None:
    runs = [run("gem", 0, (0.9, 0.98)), run("gem", 1, (0.9, 0.95))]
    assert time_to(runs, 0.97) == "2.0 [2.0, 2.0] s, not reached by 1"
    assert time_to(runs, 0.99) == "not reached"


@pytest.mark.parametrize(("epoch_s", "send_s", "judgements"), [(1.0, 0.2, ["holds", "holds"]), (9.0, 0.01, ["MISSED", "MISSED"])])
def test_a_slow_link(tmp_path: Path, epoch_s: float, send_s: float, judgements: list[str]) -> None:
    costs = {"num_parameters": 5_824_522, "num_bytes": 23_298_088, "compute_s": 0.05, "send_s": send_s, "all_send_s": [send_s]}
    runs = [
        *(run("allreduce", seed, (0.9, 0.97), 5.0) for seed in (0, 1)),
        *(run("local_sgd", seed, (0.9, 0.95, 0.96), epoch_s) for seed in (0, 1)),
    ]
    text = asynchronous_link.page_of(result(runs, costs=costs)).publish("asynchronous_link", tmp_path)
    assert verdicts_of(text) == judgements
    assert f"{10 / (3 * epoch_s):.2f}" in text
    assert f"takes {1e3 * send_s:.0f} ms to sum over the link" in (tmp_path / "asynchronous_link.md").read_text()
    assert (tmp_path / "asynchronous_link.png").exists()


def test_all_reduce_that_never_arrives_counts_with_its_whole_time() -> None:
    slow, fast = [run("allreduce", 0, (0.5, 0.6), 5.0)], [run("diloco", 0, (0.9, 0.97), 1.0)]
    assert asynchronous_link.times_as_fast(fast, slow, 0.96) == [5.0]
    assert asynchronous_link.times_as_fast(slow, fast, 0.96) == [0.0]


def test_a_server_is_a_process_more() -> None:
    processes = {entry.name: entry.command()[entry.command().index("-n") + 1] for entry in ENTRIES}
    assert {name for name, num in processes.items() if num == "5"} == {"parameter_server", "downpour", "easgd", "gem"}
    assert len(processes) == 8


SUMMARY = {
    "num_workers": 4,
    "global_batch": 128,
    "steps": 1,
    "num_skipped_updates": 0,
    "num_parameters": 7,
    "metrics": {},
    "wall_s": 1.0,
    "engine": "shm",
    "device": "cpu",
    "weights_sha256": "0",
    "versions": {},
    "history": [{"epoch": 0, "wall_s": 0.5, "samples_per_s": 3.0, "metrics": {"val_accuracy": 0.5}}],
}
WRITES = """
import json, pathlib, sys
out = pathlib.Path(sys.argv[1])
out.mkdir()
(out / "summary.json").write_text(sys.argv[2])
"""


def python(program: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", program, *arguments]


def test_trainings_side_by_side_are_all_kept() -> None:
    def writes(command: Sequence[str]) -> list[list[str]]:
        return [python(WRITES, command[-1], json.dumps({**SUMMARY, "steps": int(command[2])}))]

    found = dict(side_by_side({str(number): [str(number)] for number in range(3)}, 2, 60.0, writes))
    assert {name: one["steps"] for name, one in found.items()} == {"0": 0, "1": 1, "2": 2}
    assert found["0"] == kept({**SUMMARY, "steps": 0})
    assert found["0"]["epochs"] == [{"epoch": 1, "wall_s": 0.5, "samples_per_s": 3.0, "val_accuracy": 0.5}]


def test_a_training_that_fails_or_hangs_is_reported() -> None:
    with pytest.raises(GroupFailed, match=r"(?s)--lr 7 ended with \[3\] and printed:\nno such rate"):
        trained(["--lr", "7"], 60.0, lambda _: [python("import sys; print('no such rate'); sys.exit(3)")])
    with pytest.raises(GroupFailed, match=r"was not done after 0\.1 s"):
        trained([], 0.1, lambda _: [python("import time; time.sleep(600)")])
