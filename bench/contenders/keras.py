"""The ways to train a Keras model that `bench.keras` compares. What their ranks run is in `bench/ranks/keras_*.py`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from bench.contenders.contender import Contender
from bench.contenders.training import free_port
from bench.groups import Launch, RankSlot
from bench.training_cases import BACKENDS, KERAS_CASES, KERAS_CNN


@dataclass(frozen=True)
class Way(Contender):
    """One way to train, for the cases and backends where it makes sense; given backend, name of the case and file of its data."""

    workers: int = 1
    cases: tuple[str, ...] = tuple(KERAS_CASES)
    backends: tuple[str, ...] = BACKENDS


def missing(backend: str) -> str:
    """Local: why a backend cannot be measured here; empty if it can."""
    absent = [package for package in ("keras", backend) if find_spec(package) is None]
    return f"{absent[0]} is not installed; pip install 'unisono[{backend if backend != 'torch' else 'keras'}]'" if absent else ""


def surroundings(backend: str) -> dict[str, str]:
    """Pure: the environment of a rank: its backend, on the CPU, with one thread to compute; the conductor says it to PyTorch."""
    return {
        "KERAS_BACKEND": backend,
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_NUM_INTEROP_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "NPROC": "1",  # from which JAX takes the size of its pool
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
    }


def start_fit(how: str, backend: str, case: str, data: Path, num_ranks: int, slot: RankSlot) -> list[Launch]:
    program = ["-m", "bench.ranks.keras_fit", *slot.arguments, case, str(data), how]
    run = ["-m", "unisono", "run", "-n", str(num_ranks), "--threads", "1"] if num_ranks > 1 else []
    return [Launch([sys.executable, *run, *program], surroundings(backend))]


def start_tf_distribute(backend: str, case: str, data: Path, num_ranks: int, slot: RankSlot) -> list[Launch]:
    workers = [f"127.0.0.1:{free_port()}" for _ in range(num_ranks)]

    def place(rank: int) -> str:
        return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})

    program = slot.program("keras_tf_distribute", case, str(data))
    return [
        Launch([*program, str(rank), str(num_ranks)], {**surroundings(backend), "TF_CONFIG": place(rank)})
        for rank in range(num_ranks)
    ]


OURS = "unisono"
PLAIN = "keras fit"
OURS_TWICE = "unisono, 2 workers"
PEER_TWICE = "tf.distribute, 2 workers"

WAYS: Sequence[Way] = (
    Way(OURS, "ours", "`model.fit` of a model made in the scope of `un.keras.Strategy()`", partial(start_fit, "unisono")),
    Way(
        "unisono A/A", "noise", "the same again in another process: its distance from 1 is the noise", partial(start_fit, "unisono")
    ),
    Way(PLAIN, "plain", "`model.fit` of Keras alone", partial(start_fit, "plain")),
    Way(
        OURS_TWICE,
        "two",
        "the same program as `unisono`, started by `unisono run -n 2`: each worker has half of every batch",
        partial(start_fit, "unisono"),
        workers=2,
        cases=(KERAS_CNN.name,),
    ),
    Way(
        PEER_TWICE,
        "peer",
        "`tf.distribute.MultiWorkerMirroredStrategy` with a ring over gRPC, in a loop by hand with `strategy.run`, as `model.fit` "
        "of Keras 3 ends with an error under it; each worker is bound to its part of the CPUs, as Unisono binds its own",
        start_tf_distribute,
        workers=2,
        cases=(KERAS_CNN.name,),
        backends=("tensorflow",),
    ),
)
