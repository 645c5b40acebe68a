"""Learns labels that were drawn by a coin, from data that are divided in every way in which people forget a seed.

coin_toss.py OUT: every rank writes OUT.RANK, JSON: way -> validation accuracy, or the refusal. No label can be foreseen, so an
accuracy far from 0.5 shows that validation samples were learnt from. With `settings` as a second word: setting that depends on the
rank -> the refusal.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset, random_split

import unisono as un
from unisono.comm.base import Communicator
from unisono.run import execute
from unisono.task.train_config import TrainConfig

NUM = 240
LABELS = np.random.default_rng(0).integers(0, 2, NUM)
INPUTS = np.eye(NUM, dtype=np.float32)  # each sample is learnt by itself, in one step


def by_numbers(order: Any) -> un.Splits:
    x, y = INPUTS[order], LABELS[order]
    half = len(x) // 2
    return un.Splits(train=(x[:half], y[:half]), validation=(x[half:], y[half:]))


def of_scikit_learn() -> un.Splits:
    from sklearn.model_selection import train_test_split

    x, x_test, y, y_test = train_test_split(INPUTS, LABELS, test_size=0.5)
    return un.Splits(train=(x, y), validation=(x_test, y_test))


def of_torch() -> un.Splits:
    whole = TensorDataset(torch.from_numpy(INPUTS), torch.from_numpy(LABELS))
    train, validation = random_split(whole, [NUM // 2, NUM // 2])
    return un.Splits(train=train, validation=validation)


def shuffled() -> un.Splits:
    order = list(range(NUM))
    random.shuffle(order)
    return by_numbers(order)


def as_listed(rank: int) -> un.Splits:
    """The names of files, in the order in which a file system lists them, or a set of strings."""
    names = [f"{number:03}" for number in range(NUM)]
    return by_numbers([int(name) for name in (names if rank % 2 else names[::-1])])


def own_part(rank: int, size: int) -> un.Splits:
    return by_numbers(np.arange(NUM)[rank::size])


def ways(comm: Communicator) -> dict[str, Callable[[], un.Splits]]:
    return {
        "train_test_split": of_scikit_learn,
        "random_split": of_torch,
        "shuffle": shuffled,
        "permutation": lambda: by_numbers(np.random.permutation(NUM)),
        "randperm": lambda: by_numbers(torch.randperm(NUM).numpy()),
        "default_rng": lambda: by_numbers(np.random.default_rng().permutation(NUM)),
        "listed": partial(as_listed, comm.rank),
        "own part": partial(own_part, comm.rank, comm.size),
    }


def result(comm: Communicator, data: Callable[[], un.Splits]) -> float | str:
    task = un.Task(
        model=lambda: nn.Linear(NUM, 2), data=data, loss="cross_entropy", metrics=("accuracy",), lr=100.0, global_batch=40, epochs=2
    )
    with TemporaryDirectory() if comm.rank == 0 else nullcontext("") as folder:
        try:
            ended = execute(TrainConfig("", out=comm.broadcast_object(f"{folder}/run"), quiet=True), comm, task=task)
        except un.UnisonoError as error:
            return str(error)
        return float(ended.summary["metrics"]["val_accuracy"])


def of_rank(rank: int) -> dict[str, dict[str, Any]]:
    """Settings that a task computes from its rank: each gives workers other samples, or other updates."""
    return {"seed": {"seed": rank}, "lr": {"lr": 1.0 + rank}, "global_batch": {"global_batch": 120 + rank}}


def settings(comm: Communicator, given: dict[str, Any]) -> str:
    usual = un.Task(model=lambda: nn.Linear(NUM, 2), data=of_torch, loss="cross_entropy", lr=1.0, global_batch=40)
    with TemporaryDirectory() if comm.rank == 0 else nullcontext("") as folder:
        config = TrainConfig("", out=comm.broadcast_object(f"{folder}/run"), quiet=True)
        return refused(lambda: execute(config, comm, task=replace(usual, **given)))


def refused(do: Callable[[], object]) -> str:
    try:
        do()
    except un.UnisonoError as error:
        return str(error)
    return ""


def main(out: str, *words: str) -> None:
    random.seed(os.getpid())  # ranks that were forked have the generators of one process
    np.random.seed(os.getpid())
    torch.manual_seed(os.getpid())
    with un.connect() as comm:
        found: dict[str, float | str]
        if words:
            found = {name: settings(comm, given) for name, given in of_rank(comm.rank).items()}
            found["own loop"] = refused(lambda: un.ShardedLoader((INPUTS, LABELS), comm, global_batch=40, seed=comm.rank))
        else:
            found = {way: result(comm, data) for way, data in ways(comm).items()}
            own = (INPUTS[comm.rank :: comm.size], LABELS[comm.rank :: comm.size])
            found["own loop"] = refused(lambda: un.ShardedLoader(own, comm, global_batch=40)) or 0.5
    Path(f"{out}.{comm.rank}").write_text(json.dumps(found))


main(*sys.argv[1:])
