"""`bench.gpu` on a CPU with tiny images, its turns and its page; what must hold is judged on numbers made up here."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.contenders.gpu import BEST, LIGHTNING, LOADER, OURS, ways
from bench.gpu_cases import CASES, make_data, make_network
from bench.gpu_page import bounds_of, merged, page_of
from bench.ranks.gpu_turns import StepTurns
from bench.rounds import Samples
from bench.time_to_accuracy_gpu import page_of as page_of_mnist
from bench.time_to_accuracy_gpu import training_s
from tests.unit.bench.tables import rows_of, verdicts_of

ROOT = Path(__file__).parents[3]
TWO = f"{BEST};{OURS}"


def run(*words: str, module: str = "bench.gpu") -> str:
    done = subprocess.run([sys.executable, "-m", module, *words], cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def at(samples_per_s: Mapping[str, float], batch: int) -> dict[str, Samples]:
    """Ten rounds of two parts, 0.2 % of noise."""
    return {
        name: Samples(np.asarray([[[batch / rate * 1e6 * (1 + 0.001 * (number % 3))] * 2 for number in range(10)]]))
        for name, rate in samples_per_s.items()
    }


def test_a_quick_run_on_a_cpu_gives_raw_data_and_a_page(tmp_path: Path) -> None:
    printed = run("--quick", "--fresh", "--cases", "host", "--only", TWO, "--out", str(tmp_path / "raw"))
    result = json.loads((tmp_path / "raw" / "gpu.json").read_text())
    block = result["blocks"]["host"]
    assert set(block["times_us"]) == {BEST, OURS} and not block["failed"], block["failed"]
    assert all(state["loss"] < 1 for state in block["states"].values()), "they learn"
    assert [row[0] for row in rows_of(printed)][2:] == [BEST, OURS]
    run("--quick", "--page", str(tmp_path / "raw" / "gpu.json"), "--out", str(tmp_path / "page"))
    page = (tmp_path / "page" / "gpu.md").read_text()
    assert "Not a measurement" in page and (tmp_path / "page" / "gpu.png").exists()


def test_one_that_fails_leaves_and_the_others_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Before any package of ours is looked for, Lightning is found here, and cannot be loaded.
    for name in ("lightning", "pytorch_lightning"):
        (tmp_path / "broken" / name).mkdir(parents=True)
        (tmp_path / "broken" / name / "__init__.py").write_text("raise ImportError('broken on purpose')")
    found = [str(tmp_path / "broken"), *filter(None, sys.path)]
    monkeypatch.setenv("PYTHONPATH", ":".join(found))
    run("--quick", "--fresh", "--cases", "host", "--only", f"{BEST};{LIGHTNING}", "--out", str(tmp_path))
    block = json.loads((tmp_path / "gpu.json").read_text())["blocks"]["host"]
    assert set(block["times_us"]) == {BEST} and "broken on purpose" in block["failed"][LIGHTNING]


def test_a_loop_by_hand_that_is_too_slow_is_no_yardstick() -> None:
    bounds = bounds_of(CASES["sat6-256"], 256, at({BEST: 400e3, OURS: 399e3}, 256))
    assert [bound.verdict for bound in bounds] == ["MISSED", "not judged"]


@pytest.mark.parametrize(
    ("ours", "verdicts"), [(540e3, ["holds", "holds", "holds", "MISSED"]), (500e3, ["holds", *["MISSED"] * 3])]
)
def test_ours_against_the_loop_by_hand_and_against_its_peers(ours: float, verdicts: list[str]) -> None:
    samples = at({BEST: 550e3, OURS: ours, LOADER: 88e3, LIGHTNING: 95e3}, 256)
    assert [bound.verdict for bound in bounds_of(CASES["sat6-256"], 256, samples)] == verdicts


def test_resnet_is_judged_by_images_a_second_and_the_host_by_microseconds() -> None:
    resnet = bounds_of(CASES["resnet50-streamed"], 256, at({BEST: 6800, OURS: 6100}, 256))
    assert [bound.verdict for bound in resnet] == ["holds", "holds"]
    host = bounds_of(CASES["host"], 64, at({BEST: 2e6, OURS: 64 / 130e-6}, 64))
    assert [(bound.verdict, bound.asked) for bound in host] == [("MISSED", "at most 120")]


def test_runs_of_several_cases_become_one_page(tmp_path: Path) -> None:
    def result(case: str, rate: float) -> dict[str, Any]:
        size = CASES[case].batch
        times = {name: one.times.tolist() for name, one in at({BEST: rate, OURS: 0.97 * rate}, size).items()}
        block = {"batch": size, "rounds": 10, "failed": {}, "times_us": times, "states": {OURS: {"chosen": "compiled"}}}
        settings = {"effort": {"turn_s": 1.0, "num_calls": 2}, "device": "cuda", "cases": {case: {}}}
        moment = {"at": "now", "commit": "1", "load": "0.1"}
        names = {way.name: {"about": way.about} for way in ways(8, "default", {})}
        return {
            "command": f"python -m bench.gpu --cases {case}",
            "quick": False,
            "sittings": [moment],
            "settings": settings,
            "contenders": names,
            "blocks": {case: block},
        }

    both = merged([result("resnet50", 6900), result("sat6-64", 250e3)])
    assert list(both["blocks"]) == ["sat6-64", "resnet50"]
    page_of(both).publish("gpu", tmp_path)
    text = (tmp_path / "gpu.md").read_text()
    assert verdicts_of(text) == ["holds"] * 4
    assert "--cases resnet50\n    python" in text and "`Unisono` at sat6-64: compiled." in text


def test_turns_of_steps_end_when_the_device_is_done() -> None:
    seen, synchronised = list[list[int]](), list[int]()
    steps = 0
    turns = StepTurns(lambda: synchronised.append(steps), lambda: None)

    def ask() -> None:
        turns.prepare()
        for lengths in ([2], [3, 4]):
            seen.append([len(turns.take(*lengths)), steps])
        turns.end()

    def train(step_done: Callable[[], None]) -> None:
        nonlocal steps
        while True:
            steps += 1
            step_done()

    asking = threading.Thread(target=ask)
    asking.start()
    turns.run(lambda: None, train)
    asking.join(10)
    assert seen == [[1, 2], [2, 9]] and synchronised == [2, 5, 9]


def test_who_asks_is_told_what_the_training_raised() -> None:
    turns, told = StepTurns(lambda: None, lambda: None), list[str]()

    def ask() -> None:
        turns.prepare()
        with pytest.raises(ValueError) as caught:
            turns.take(1)
        told.append(str(caught.value))

    def train(_: object) -> None:
        raise ValueError("no memory")

    asking = threading.Thread(target=ask)
    asking.start()
    turns.run(lambda: None, train)
    asking.join(10)
    assert told == ["no memory"]


@pytest.mark.parametrize("name", CASES)
def test_every_case_has_data_and_a_network_for_them(name: str) -> None:
    import torch

    case = CASES[name].small()
    inputs, targets = make_data(case)
    assert inputs.shape == (case.num_samples, *case.shape) and targets.max() < case.num_classes
    assert make_network(case)(torch.from_numpy(inputs[:2]).float() / 255).shape == (2, case.num_classes)


def test_the_networks_have_the_sizes_that_are_said() -> None:
    sizes = {name: sum(one.numel() for one in make_network(CASES[name]).parameters()) for name in ("sat6-64", "resnet50")}
    assert sizes == {"sat6-64": 225_382, "resnet50": 25_557_032}


def of_seed(seed: int, target_s: float | None) -> dict[str, Any]:
    epochs = [{"epoch": 1, "wall_s": 2.0, "val_accuracy": 0.98}, {"epoch": 2, "wall_s": 2.2, "val_accuracy": 0.991}]
    return {
        "seed": seed,
        "command_s": 9.0,
        "first_step_s": 1.8,
        "steps": 401,
        "num_samples": 120_000,
        "time_to_target_s": target_s,
        "epochs_done": epochs,
    }


def test_time_to_accuracy_leaves_out_what_comes_before_the_first_step(tmp_path: Path) -> None:
    assert training_s(of_seed(0, 2.2)) == pytest.approx(0.4 * 401 / 400)
    runs = {f"seed {seed}": of_seed(seed, 2.2) for seed in range(9)}
    page = page_of_mnist({"runs": runs})
    assert [bound.verdict for bound in page.bounds] == ["holds", "holds"]
    page = page_of_mnist({"runs": {**runs, "seed 9": of_seed(9, None), "seed 10": {"seed": 10, "failure": "no GPU"}}})
    assert [bound.verdict for bound in page.bounds] == ["MISSED", "holds"]
    page.publish("mnist_gpu", tmp_path)
    assert "no GPU" in (tmp_path / "mnist_gpu.md").read_text()
