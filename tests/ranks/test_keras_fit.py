"""`un.keras.Strategy`: plain `model.fit` on several workers is that of one, on every backend of Keras."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ranks.launching import Launcher
from tests.system.fork_server import ForkServer
from tests.system.ports import free_ports

PROGRAM = Path(__file__).parent / "programs" / "keras_fit.py"
LIMIT_S = 220.0


Run = Callable[..., list[Any]]


@pytest.fixture
def run(fork_server: ForkServer, keras_server: ForkServer, tensorflow_server: ForkServer, tmp_path: Path) -> Run:
    """Returns what every rank of a program wrote."""
    servers = {"torch": keras_server, "tensorflow": tensorflow_server, "jax": fork_server}

    def run(backend: str, num_workers: int, program: Path, *arguments: str) -> list[Any]:
        out = tmp_path / "found"
        env = {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = servers[backend].stand_in([str(program), str(out), *arguments])
        with Launcher("-n", str(num_workers), *command, env=env).reading() as launcher:
            assert launcher.finish(LIMIT_S) == 0, launcher.shown()
        return [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(num_workers)]

    return run


def assert_near(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(np.array(found), np.array(expected), rtol=0, atol=tolerance)


def often(backend: str, what: Any) -> Any:
    """A case for every change; `seldom` are those that would show nothing else, and take a minute each to compile."""
    return pytest.param(backend, what)


def seldom(backend: str, what: Any) -> Any:
    return pytest.param(backend, what, marks=pytest.mark.soak)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("backend", "num_workers"),
    [often("torch", 3), often("tensorflow", 2), seldom("jax", 2), seldom("torch", 2), seldom("tensorflow", 3), seldom("jax", 3)],
)
def test_fit_is_that_of_one_worker(run: Run, backend: str, num_workers: int) -> None:
    ranks = run(backend, num_workers, PROGRAM)
    for kind in ("sgd", "adam"):
        plain = ranks[0][f"plain {kind}"]
        for rank in ranks:
            shared = rank[f"shared {kind}"]
            assert shared["history"].keys() == plain["history"].keys()
            for name, values in plain["history"].items():
                assert_near(shared["history"][name], values)
            assert shared["weights"] == ranks[0][f"shared {kind}"]["weights"]
            for found, expected in zip(shared["weights"], plain["weights"], strict=True):
                assert_near(found, expected)
            assert_near(shared["again"], plain["again"])
            assert_near(shared["evaluated"], plain["evaluated"])
            assert_near(shared["predicted"], plain["predicted"])
            assert shared["iterations"] == plain["iterations"]
    outputs, in_layer = ranks[0]["plain outputs"], {"seen"} if backend != "jax" else set()
    for rank in ranks:
        assert rank["shared outputs"].keys() == outputs.keys() == {"loss", "kind_loss", "size_loss", *in_layer}
        for name, values in outputs.items():
            assert_near(rank["shared outputs"][name], values)
    first = ranks[0]["streams"]["arrays"]
    for rank in ranks:
        for found in rank["streams"].values():
            assert found == first
        total = num_workers * (num_workers + 1) / 2
        assert rank["reduced"] == [[total, total], num_workers, (num_workers - 1) / 2]


ALGORITHMS = ("allreduce", "local_sgd", "downpour", "easgd", "gem", "diloco")
FEW = ("local_sgd", "gem")
"""In step, and through a server."""


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("backend", "algorithms"),
    [often("torch", FEW), seldom("torch", ALGORITHMS), seldom("tensorflow", ALGORITHMS), seldom("jax", ALGORITHMS)],
)
def test_each_algorithm_trains(run: Run, backend: str, algorithms: tuple[str, ...]) -> None:
    ranks = run(backend, 3, PROGRAM.with_name("keras_algorithms.py"), *algorithms)
    assert tuple(ranks[0]) == algorithms
    assert all(accuracy >= 0.95 for accuracy in ranks[0].values()), ranks[0]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("backend", "every"),
    [
        often("torch", "2steps"),
        seldom("torch", "1epochs"),
        seldom("tensorflow", "2steps"),
        seldom("tensorflow", "1epochs"),
        seldom("jax", "2steps"),
        seldom("jax", "1epochs"),
    ],
)
def test_a_killed_fit_resumes(run: Run, tmp_path: Path, backend: str, every: str) -> None:
    """With batch normalisation, dropout, callbacks that set the learning rate, and a second fit after it."""
    program = PROGRAM.with_name("keras_backup.py")
    whole, *_ = run(backend, 2, program, str(tmp_path / "whole"), every)
    env = {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    killed = ("-n", "2", str(program), str(tmp_path / "found"), str(tmp_path / "cut"), every, "8")
    with Launcher(*killed, env=env).reading() as launcher:
        assert launcher.finish(LIMIT_S) != 0
        assert "SIGKILL" in launcher.shown()
    for rank in run(backend, 2, program, str(tmp_path / "cut"), every):
        assert rank["weights"] == whole["weights"] and rank["lr"] == whole["lr"] and rank["again"] == whole["again"]
        for name in ("loss", "accuracy", "val_loss", "val_accuracy"):
            assert rank["history"][name] == whole["history"][name]


REFUSED = {
    "random": "the workers hold different data: rank 1 differs from rank 0 in the generator in x (epoch 1, step 1)",
    "own part": "the workers hold different data: rank 1 differs from rank 0 in the training data",
    "endless": "has no known length; give steps_per_epoch",
    "short": "ended after 1 of 2 steps",
    "few steps": "steps_per_epoch is 2, but an epoch uses all 4 batches",
    "one worker": "train_on_batch would run on one worker only",
    "no targets": "y (the targets) is missing",
    "batch of a stream": "the generator already determines batch_size",
    "nothing": "x has no samples",
    "TPU": "use un.keras.MultiWorkerMirroredStrategy",
    "storage": "use un.keras.MirroredStrategy",
}


@pytest.mark.timeout(120)
def test_callbacks_act_on_all_workers(run: Run, tmp_path: Path) -> None:
    ranks = run("torch", 2, PROGRAM.with_name("keras_callbacks.py"))
    for rank in ranks:
        assert rank["epochs"] < 9 and abs(rank["now"] - rank["best"]) < 1e-6, "stopped early, with the best weights"
        assert rank["weights"] == ranks[0]["weights"]
        assert rank["class weights"] and rank["frozen"]
        assert rank["cut"] == [2, 2, 4 + 2], "stopped in the middle of an epoch, which counts"
        assert rank["rate"] == 0.125
        assert abs(rank["of the first"] - np.log(3)) < 1e-6
        assert rank["ended"] == 1 + 3, "after a first look, and with every epoch, as in plain Keras"
        assert rank["mixed"][-1] < rank["mixed"][0] and rank["mixed type"] == "float32"
    for name, text in REFUSED.items():
        said = [rank["refused"][name] for rank in ranks]
        assert any(text in one for one in said) and all(text in one or one == "told" for one in said), (name, said)
    assert ranks[0]["orders differ"], "every fit shuffles anew"
    assert ranks[0]["rows"] == 5 and ranks[1]["rows"] is None
    assert ranks[0]["num_batches"] == 2 * 4 and ranks[0]["moves"] and ranks[1]["num_batches"] == 0
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"found.0", "found.1", "found-best-0.keras", "found-log-0.csv"}


@pytest.mark.timeout(120)
def test_workers_that_do_not_wait(run: Run) -> None:
    ranks = run("torch", 3, PROGRAM.with_name("keras_server.py"))
    for rank in ranks:
        assert rank["sum"] == ranks[0]["sum"]
        assert rank["predicted"] > 0.85 and abs(rank["evaluated"][1] - rank["predicted"]) < 1e-6
        assert abs(rank["history"]["val_loss"][-1] - rank["evaluated"][0]) < 1e-5


MEET = """
import sys, keras, numpy as np, unisono as un
strategy = un.keras.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
x = np.arange(40, dtype=np.float32).reshape(10, 4) / 40
model.fit(x, x[:, :1], batch_size=5, verbose=0)
print(strategy.num_replicas_in_sync, strategy.is_chief, [one.tolist() for one in model.get_weights()])
"""


@pytest.mark.timeout(120)
def test_a_script_of_tf_distribute_is_started_as_before() -> None:
    """By plain `python` with TF_CONFIG for each worker."""
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", MEET],
            env={
                **os.environ,
                "KERAS_BACKEND": "torch",
                "TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        ended = [process.communicate(timeout=100) for process in started]
    finally:
        for process in started:
            process.kill()
    told = [out.splitlines()[-1].split(" ", 2) for out, _ in ended if out]
    assert [(size, chief) for size, chief, _ in told] == [("2", "True"), ("2", "False")], ended
    assert told[0][2] == told[1][2]
