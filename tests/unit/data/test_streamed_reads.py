"""Random numbers drawn while samples are read belong to seed, epoch and sample."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from unisono.comm.single_process import single_process_communicator
from unisono.data.loader import Loader
from unisono.data.sample_random import SampleRandom
from unisono.data.sharding_plan import Plan
from unisono.data.source import Source
from unisono.data.sources.arrays import Arrays
from unisono.data.sources.sequence import Items
from unisono.data.splits import Splits
from unisono.data.streamed_reads import StreamedReads, describe_unrepeatable_augment, with_streams
from unisono.errors import UsageError
from unisono.run import execute
from unisono.task.task import Task
from unisono.task.train_config import TrainConfig

X = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
Y = np.arange(40) % 2


class Augmented:
    """As torch's data sets with transforms: every read of a sample is another."""

    def __init__(self, own: np.random.Generator | None = None) -> None:
        self.own = own

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        noise = torch.rand(6).numpy() + np.random.random(6) + random.random()
        if self.own is not None:
            noise = noise + self.own.normal(size=6)
        return (X[number] + noise).astype(np.float32), Y[number]


def read(source: Source, *numbers: int) -> Any:
    return source.read(np.array(numbers))[0]


def test_a_sample_has_its_own_numbers_in_whichever_batch_it_is() -> None:
    source = with_streams(Items(Augmented()))
    assert isinstance(source, StreamedReads)
    assert np.array_equal(read(source, 3, 5), np.concatenate([read(source, 3), read(source, 5)]))
    assert not np.array_equal(read(source, 3) - X[3], read(source, 5) - X[5])
    loaders = [Loader(source, Plan(40, 10, 7), shard, size) for size, shard in ((1, 0), (2, 0), (2, 1))]
    epochs = [[portion.micro_batches[0][0] for portion in loader.epoch(epoch)] for loader in loaders for epoch in (0, 1)]
    one, other_epoch, first, _, second, _ = epochs
    assert all(np.array_equal(whole, np.concatenate(parts)) for whole, *parts in zip(one, first, second, strict=True))
    assert sorted(np.concatenate(one).sum(1)) != sorted(np.concatenate(other_epoch).sum(1))


def test_the_generators_of_the_process_stay_as_they_were() -> None:
    def drawn() -> list[float]:
        return [float(torch.rand(1)), np.random.random(), random.random()]

    source = with_streams(Items(Augmented()))
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    expected = drawn()
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])
    read(source, *range(20))
    with_streams(Items(Augmented()))
    assert drawn() == expected


@pytest.mark.parametrize("plain", [Arrays(X, Y), Items(list(zip(X, Y, strict=True))), Arrays(X, Y).map_inputs(lambda x: x + 1)])
def test_what_draws_nothing_is_read_as_before(plain: Source) -> None:
    assert with_streams(plain) is plain


def trained(tmp_path: Path, name: str, data: Any, **settings: Any) -> Any:
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(int.from_bytes(name.encode()[-3:], "big"))  # as other processes have others
    task = Task(
        model=lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 2)),
        data=lambda: Splits(train=data(), validation=data()),
        loss="cross_entropy",
        lr=0.1,
        global_batch=10,
        epochs=2,
        name="augmented",
        augment=settings.pop("augment", None),
    )
    changes = {key: value for key, value in settings.items() if key == "shards"}
    options = {key: value for key, value in settings.items() if key != "shards"}
    config = TrainConfig("", changes, out=str(tmp_path / name), quiet=True, **options)
    return execute(config, single_process_communicator(), task=task).summary


def test_the_same_command_and_a_resume_give_the_same_weights(tmp_path: Path) -> None:
    once, again = (trained(tmp_path, name, Augmented) for name in ("once", "again"))
    assert once["weights_sha256"] == again["weights_sha256"]
    assert once["metrics"] == again["metrics"]
    assert trained(tmp_path, "cut", Augmented, max_steps=3)["steps"] == 3
    assert trained(tmp_path, "cut", Augmented)["weights_sha256"] == once["weights_sha256"]


def test_numbers_of_a_data_sets_own_generator_are_noted_and_refused_with_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # which a training in shards sets for its process

    def data() -> Augmented:
        return Augmented(np.random.default_rng())

    trained(tmp_path, "noted", data)
    with pytest.raises(UsageError, match=r"--shards promises .* other values \(the inputs of the training data\)"):
        trained(tmp_path, "refused", data, shards=2)


@pytest.mark.parametrize("of_process", [np.random.random, random.random, np.random.default_rng().random])
def test_an_augment_that_draws_from_elsewhere_is_noted_and_refused_with_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_process: Callable[[], float]
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

    def augment(batch: Any, random: SampleRandom) -> Any:
        inputs, targets = batch
        inputs += random.normal(shape=(6,)).astype(np.float32)  # in place, as users may
        return inputs * np.float32(of_process() if draws else 1.0), targets

    for draws in (False, True):
        assert bool(describe_unrepeatable_augment(augment, Arrays(X, Y))) == draws
    with pytest.raises(UsageError, match=r"--shards promises .* augment of the task gives other results .*un.SampleRandom"):
        trained(tmp_path, "refused", lambda: Items(list(zip(X, Y, strict=True))), augment=augment, shards=2)
