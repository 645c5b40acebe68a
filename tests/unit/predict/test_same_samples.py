"""Runs are compared only on the same samples, which are known by their numbers, labels and values."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.predict.made_runs import make_run
from unisono.comm.single_process import single_process_communicator
from unisono.errors import UsageError
from unisono.predict.compare_runs import compare_runs
from unisono.predict.evaluate_run import evaluate_run
from unisono.predict.predict_options import EvaluateConfig
from unisono.run import execute
from unisono.task.train_config import TrainConfig

TASK = """
import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset, random_split

import unisono as un
from unisono.data.sources.numpy_files import Npy


def data(site: str = "", seed: int = 0, scale: float = 1.0) -> un.Splits:
    if site:
        return un.split(Npy(f"{site}/x.npy", "y.npy").map_inputs(lambda x: x * scale), test=20, validation=0)
    whole = TensorDataset(torch.from_numpy(np.load("siteA/x.npy")), torch.from_numpy(np.load("y.npy")))
    train, test = random_split(whole, [80, 20], generator=torch.Generator().manual_seed(seed))
    return un.Splits(train, test=test)


task = un.Task(
    model=lambda: nn.Linear(4, 2), data=data, loss="cross_entropy", metrics=("accuracy",), lr=0.1, global_batch=80, epochs=1
)
"""


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Trains in the folder of two sites, whose files have the same names, sizes and labels; returns the run directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    random = np.random.default_rng(0)
    for site in ("siteA", "siteB"):
        Path(site).mkdir()
        np.save(f"{site}/x.npy", random.normal(size=(100, 4)).astype(np.float32))
    np.save("y.npy", np.arange(100) % 2)
    file = f"task_{tmp_path.name}.py"
    Path(file).write_text(TASK)

    def run(out: str, **data: Any) -> str:
        changes = {f"data.{name}": value for name, value in data.items()}
        execute(TrainConfig(file, changes, out=out, quiet=True), single_process_communicator())
        return out

    return run


def test_runs_on_two_random_splits_are_not_one_split(train: Any) -> None:
    one, same, other = train("one", seed=1), train("same", seed=1), train("other", seed=2)
    assert len(compare_runs([one, same]).rows) == 2
    with pytest.raises(UsageError, match=r"test_loss of these runs was measured on different samples.*one, same; split .*other"):
        compare_runs([one, same, other])


def test_files_with_the_same_names_sizes_and_labels_are_not_one_split(train: Any) -> None:
    here, scaled, there = train("here", site="siteA"), train("scaled", site="siteA", scale=2.0), train("there", site="siteB")
    found = compare_runs([here, scaled])
    assert len(found.rows) == 2 and not any("other values" in note for note in found.notes), "only prepared in another way"
    with pytest.raises(UsageError, match=r"measured on different samples.*with other values of the inputs: there"):
        compare_runs([here, there])


def test_an_evaluation_of_changed_inputs_counts_for_nothing(train: Any) -> None:
    run, comm = train("run", site="siteA"), single_process_communicator()
    evaluate_run(EvaluateConfig(run, save_predictions=True), comm)
    before = compare_runs([run])
    np.save("siteA/x.npy", np.load("siteB/x.npy"))
    with pytest.raises(UsageError, match=r"the values of the inputs of the .* are not those of the training of run; restore them"):
        evaluate_run(EvaluateConfig(run), comm)
    found = evaluate_run(EvaluateConfig(run, accept_changes=True, save_predictions=True), comm)
    assert "the values of the inputs of the test data are not those of the training" in found["changed_data"]
    after = compare_runs([run])
    assert [row.value for row in after.rows] == [row.value for row in before.rows]
    assert any("evaluation-test.json is left out" in note for note in after.notes)


def test_a_run_of_an_earlier_version_says_what_cannot_be_checked(train: Any) -> None:
    """It recorded no values of its data: it is evaluated and compared all the same."""
    new, old, comm = train("new", site="siteA"), train("old", site="siteA"), single_process_communicator()
    for file, entry in (("config.json", "values"), ("summary.json", "samples")):
        content = json.loads(Path(old, file).read_text())
        del (content["samples"] if entry == "values" else content)[entry]
        Path(old, file).write_text(json.dumps(content))
    (note,) = [note for note in compare_runs([new, old]).notes if "recorded no values" in note]
    assert note.startswith("old recorded no values of the test data, as an earlier version trained it")
    (note,) = evaluate_run(EvaluateConfig(old), comm)["notes"]
    assert note.startswith("old has recorded no values of its test data, as an earlier version trained it")
    assert evaluate_run(EvaluateConfig(new), comm)["notes"] == []


def test_computed_inputs_with_other_values_are_compared_with_a_note_and_not_paired(tmp_path: Path) -> None:
    """What a task computes in memory may be the same samples, scaled otherwise; other targets are other samples."""
    targets = np.arange(359) % 2

    def run(name: str, inputs: float, of_targets: float = 1.0, lr: float = 1.0) -> str:
        known: dict[str, Any] = {
            "order": None,
            "source": {"[0]": [9.0, inputs], "[1]": [9.0, of_targets]},
            "is_stored": False,
            "target_shape": [],
            "has_weights": False,
        }
        made = make_run(tmp_path / name, {"test_accuracy": 1.0}, lr=lr, samples={"test": known})
        kept: dict[str, Any] = {"split_sha256": "aa" * 32, "weights_sha256": "ff" * 32, "targets": targets}
        np.savez(Path(made) / "predictions-test.npz", outputs=np.eye(2, dtype=np.float32)[targets], **kept)
        return made

    plain, same, scaled, others = run("plain", 1.0), run("same", 1.0, lr=2), run("scaled", 3.0, lr=3), run("others", 1.0, 2.0, lr=4)
    assert [row.difference for row in compare_runs([plain, same]).rows] == [None, (0.0, 0.0)]
    found = compare_runs([plain, scaled])
    assert [row.difference for row in found.rows] == [None, None]
    assert any(f"the inputs of the test data have other values in {scaled} than in {plain}" in note for note in found.notes)
    assert any("that their samples are the same is not known" in note for note in found.notes)
    with pytest.raises(UsageError, match=r"with other values of the targets: .*others"):
        compare_runs([plain, others])
