"""Records hashes of the weights during training, so that two runs can be compared step by step, tensor by tensor (hashes.jsonl)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from unisono.files.atomic import explain_os_errors
from unisono.model.flat import hash_of
from unisono.training.run_folder.weights import weights_of

FILE = "hashes.jsonl"
FIRST, FIRST_BYTES = 20, 100_000_000
"""A training in shards records so many steps by itself, for `unisono verify`, if its weights are no larger."""
SHORT = 12
"""Digits that people compare by eye."""


def short_hash(tensors: Mapping[str, Tensor]) -> str:
    """Local: one short hash of all tensors together."""
    return hash_of(tensors)[:SHORT]


class HashRecord:
    """Writes a row after every `every`-th step and after the `first` ones, with the hash of each tensor. Local, blocking; one
    rank."""

    def __init__(self, path: Path, every: int | None, model: nn.Module, first: int = 0) -> None:
        self._path = path
        self._every = every
        self._first = first
        self._model = model
        self._begin = "\n" if path.exists() else ""  # an attempt that was killed may have left half a line

    def after_step(self, step: int) -> None:
        """Records the hashes after `step` steps, if a row is due."""
        if step > self._first and (self._every is None or step % self._every):
            return
        tensors = {name: short_hash({name: value}) for name, value in weights_of(self._model).items()}
        row = {"step": step, "tensors": tensors}
        with explain_os_errors(self._path), self._path.open("a") as file:
            file.write(self._begin + json.dumps(row) + "\n")
        self._begin = ""


def open_hash_record(folder: Path, every: int | None, model: nn.Module, in_shards: bool) -> HashRecord | None:
    """Local: opens the record for the rows that were requested, and for the first steps of a training in shards; None without
    any."""
    is_small = sum(one.nbytes for one in weights_of(model).values()) <= FIRST_BYTES
    num_first = FIRST if in_shards and is_small else 0
    return None if every is None and not num_first else HashRecord(folder / FILE, every, model, num_first)


def read_hashes(path: Path) -> dict[int, dict[str, str]]:
    """Local: step -> tensor -> hash. The newest row of a step counts, as a resumed run may repeat steps."""
    found = {}
    for line in path.read_text().splitlines():
        try:
            row = json.loads(line)
        except ValueError:  # the last line of an attempt that was killed
            continue
        found[row["step"]] = row["tensors"]
    return found


def first_difference(there: Mapping[int, Mapping[str, str]], here: Mapping[int, Mapping[str, str]]) -> tuple[int, list[str]] | None:
    """Pure: the first step whose tensors differ, and which they are; None if those that both have are equal."""
    for step in sorted(there.keys() & here.keys()):
        names = [name for name in {**there[step], **here[step]} if there[step].get(name) != here[step].get(name)]
        if names:
            return step, names
    return None
