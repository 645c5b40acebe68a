"""Hashes of the weights while they are trained, so that two runs can be compared step by step, tensor by tensor (hashes.jsonl)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from unisono.model.flat import hash_of
from unisono.training.atomic import explained

FILE = "hashes.jsonl"
SHORT = 12
"""Digits that people compare by eye."""


def short_hash(tensors: Mapping[str, Tensor]) -> str:
    """Local: of all tensors together."""
    return hash_of(tensors)[:SHORT]


class HashRecord:
    """One row after every `every`-th step, with the hash of each tensor. Local, blocking; on one rank."""

    def __init__(self, path: Path, every: int, model: nn.Module) -> None:
        self._path = path
        self._every = every
        self._model = model

    def after_step(self, step: int) -> None:
        """`step` steps are done."""
        if step % self._every:
            return
        state = {name: value for name, value in self._model.state_dict().items() if isinstance(value, Tensor)}
        row = {"step": step, "tensors": {name: short_hash({name: value}) for name, value in state.items()}}
        with explained(self._path), self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def read_hashes(path: Path) -> dict[int, dict[str, str]]:
    """Local: step -> tensor -> hash. What a life that went on did again outweighs what was there."""
    with explained(path):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["step"]: row["tensors"] for row in rows}


def first_difference(there: Mapping[int, Mapping[str, str]], here: Mapping[int, Mapping[str, str]]) -> tuple[int, list[str]] | None:
    """Pure: the first step whose tensors differ, and which they are; None if those that both have are equal."""
    for step in sorted(there.keys() & here.keys()):
        names = [name for name in {**there[step], **here[step]} if there[step].get(name) != here[step].get(name)]
        if names:
            return step, names
    return None
