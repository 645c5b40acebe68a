"""Predictions of trained models by hand: each run prepares its own inputs, and no sample gets a label that it cannot have."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from unisono.comm.single_process import single_process_communicator
from unisono.errors import UsageError
from unisono.predict.apply_run import apply_runs
from unisono.predict.predict_options import ApplyConfig
from unisono.run import execute
from unisono.task.train_config import TrainConfig

TASK = """
import numpy as np
from torch import nn

import unisono as un


class Named(un.Arrays):
    def __init__(self, *arrays, classes):
        super().__init__(*arrays)
        self.classes = classes

    def describe(self):
        return {**super().describe(), "classes": list(self.classes)}


def data(scale: float = 1.0, fitted: bool = False, classes: str = "a,b,c,d,e,f,g,h,i,j") -> un.Splits:
    made = un.split(Named(*un.digits(), classes=tuple(classes.split(","))), validation=0, test=300, seed=3)
    if not fitted:
        train, test = (part.map_inputs(lambda x: x * scale) for part in made.parts().values())
        return un.Splits(train, test=test)
    return un.map_fitted(made, lambda train: lambda x, mean=train.read(np.arange(len(train)))[0].mean(0): (x - mean) * scale)


task = un.Task(
    model=lambda: nn.Linear(64, 10), data=data, loss="cross_entropy", metrics=("accuracy",), lr=0.1, global_batch=100, epochs=3
)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two runs that prepare the digits in different ways, and one that names them differently; the folder is the current one."""
    folder = tmp_path_factory.mktemp("applied")
    file = f"task_{folder.name}.py"
    (folder / file).write_text(TASK)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        comm = single_process_communicator()
        runs: dict[str, dict[str, Any]] = {
            "small": {},
            "large": {"data.scale": -4.0, "data.fitted": True},
            "turned": {"data.classes": "b,a,c,d,e,f,g,h,i,j"},
        }
        for out, changes in runs.items():
            execute(TrainConfig(file, changes, out=out, quiet=True), comm)
        np.save("new.npy", digits()[0][:50])
        yield folder


def digits() -> tuple[Any, Any]:
    import unisono as un

    return un.digits()


def applied(*runs: str, said: list[str] | None = None, **options: Any) -> Path:
    words = [] if said is None else said
    return apply_runs(ApplyConfig(runs, overwrite=True, **options), single_process_communicator(), say=words.append).out


def by_hand(run: str, inputs: Any) -> Any:
    """The probabilities of the linear model of a run."""
    weights = load_file(f"{run}/weights.safetensors")
    outputs = inputs.astype(np.float64) @ weights["weight"].T + weights["bias"]
    shares = np.exp(outputs - outputs.max(1, keepdims=True))
    return shares / shares.sum(1, keepdims=True)


def prepared_by_hand(inputs: Any) -> dict[str, Any]:
    from unisono.data.splits import split

    train = split(digits(), validation=0, test=300, seed=3).train
    mean = train.read(np.arange(len(train)))[0].mean(0)
    return {"small": inputs, "large": (inputs - mean) * -4.0}


@pytest.mark.usefixtures("trained")
@pytest.mark.parametrize("runs", [("small", "large"), ("large", "small"), ("small", "small")])
def test_every_run_of_an_ensemble_prepares_its_own_inputs(runs: tuple[str, str]) -> None:
    prepared = prepared_by_hand(digits()[0][:50])
    expected = np.mean([by_hand(run, prepared[run]) for run in runs], axis=0)
    out = applied(*runs, inputs=["new.npy"], kind="probabilities", out="new-shares.npy")
    assert np.load(out) == pytest.approx(expected, abs=1e-5)


@pytest.mark.usefixtures("trained")
def test_every_run_of_an_ensemble_prepares_its_own_test_data() -> None:
    from unisono.data.splits import split

    test = split(digits(), validation=0, test=300, seed=3).test
    assert test is not None
    inputs, labels = test.read(np.arange(300))
    prepared = prepared_by_hand(inputs)
    expected = (by_hand("small", prepared["small"]) + by_hand("large", prepared["large"])) / 2
    assert np.load(applied("small", "large", kind="probabilities", out="shares.npy")) == pytest.approx(expected, abs=1e-5)
    found = np.load(applied("small", "large", out="labels.npy"))
    assert (found == labels).mean() == (expected.argmax(1) == labels).mean() > 0.9


@pytest.mark.usefixtures("trained")
@pytest.mark.parametrize("as_is", [False, True])
def test_runs_that_name_their_classes_differently_are_not_averaged(as_is: bool) -> None:
    with pytest.raises(UsageError, match=r"small and turned cannot be averaged.*class 0 is 'a' and 'b'"):
        applied("small", "turned", inputs=["new.npy"], as_is=as_is, out="never.csv")
    assert not Path("never.csv").exists()


@pytest.mark.usefixtures("trained")
@pytest.mark.parametrize("odd", [np.nan, np.inf])
@pytest.mark.parametrize("out", ["odd.csv", "odd.npy"])
def test_inputs_that_are_not_finite_get_no_label(odd: float, out: str) -> None:
    inputs = digits()[0][:50].astype(np.float32)
    inputs[7, 3] = inputs[9, 1] = odd
    np.save("odd-inputs.npy", inputs)
    with pytest.raises(UsageError, match=r"2 of 50 samples of odd-inputs\.npy have no label.*the first is row 7"):
        applied("small", inputs=["odd-inputs.npy"], out=out)
    assert not Path(out).exists()
    said: list[str] = []
    shares = np.load(applied("small", inputs=["odd-inputs.npy"], kind="probabilities", out="odd-shares.npy", said=said))
    assert np.flatnonzero(np.isnan(shares).any(1)).tolist() == [7, 9]
    assert "warning: NaN or infinity in the inputs of 2 of 50 samples of odd-inputs.npy" in said
    assert "warning: 2 of 50 predictions are NaN or infinite" in said


@pytest.mark.usefixtures("trained")
def test_the_index_of_a_table_is_the_number_of_the_sample() -> None:
    from unisono.data.splits import split

    test: Any = split(digits(), validation=0, test=300, seed=3).test
    with applied("small", out="table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["index"]) for row in rows] == test.indices.tolist()
    with applied("small", inputs=["new.npy"], out="new.csv").open() as file:
        assert [row["index"] for row in csv.DictReader(file)] == [str(number) for number in range(50)]
