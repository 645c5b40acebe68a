"""A rank that trains on a GPU in one of the ways of `bench.gpu`: `... SOCKET GROUP FOLDER ORDER`, the last as JSON.

It says hello before it loads PyTorch, so that all contenders load theirs at the same time.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from bench.gpu_cases import CASES, Case
from bench.ranks.gpu_turns import Loop, StepTurns, answer_of
from bench.ranks.slot import attend


def make_loop(case: Case, device: str, folder: Path, how: Mapping[str, Any]) -> Loop:
    """Local: loads what it needs."""
    kind, options = how["kind"], how["options"]
    if kind == "unisono":
        from bench.ranks.gpu_unisono import Unisono

        return Unisono(case, device, folder, options)
    if kind == "hand":
        from bench.ranks.gpu_hand import Hand

        return Hand(case, device, **options)
    from bench.ranks.gpu_loader import Lightning, PlainLoader

    return {"loader": PlainLoader, "lightning": Lightning}[kind](case, device, **options)


class Rank(Loop):
    """Its loop, which is made in the thread that trains."""

    def __init__(self, folder: Path, order: Mapping[str, Any]) -> None:
        self._folder, self._order = folder, order
        self._on_gpu = order["device"] == "cuda"
        self.turns = StepTurns(self._synchronise, self._release)
        self.actions: dict[str, Callable[..., Any]] = {name: self._acting(name) for name in ("prepare", "warm", "time", "state")}

    def prepare(self) -> None:
        case = CASES[self._order["case"]]
        case = case.small() if self._order["small"] else case
        self._loop = make_loop(case, self._order["device"], self._folder, self._order["how"])
        self._answers = answer_of(self._loop, self.turns, self._memory_gib)
        self._loop.prepare()

    def train(self, step_done: Callable[[], None]) -> None:
        self._loop.train(step_done)

    def loss(self) -> float:
        return self._loop.loss()

    def _acting(self, name: str) -> Callable[..., Any]:
        if name == "prepare":
            return self.turns.prepare
        return lambda **given: self._answers[name](**given)

    def _synchronise(self) -> None:
        if self._on_gpu:
            import torch

            torch.cuda.synchronize()

    def _release(self) -> None:
        if self._on_gpu and self._loop.releases:
            import torch

            torch.cuda.empty_cache()

    def _memory_gib(self) -> float:
        if not self._on_gpu:
            return 0.0
        import torch

        return torch.cuda.max_memory_reserved() / 2**30


def main() -> None:
    rank = Rank(Path(sys.argv[3]), json.loads(sys.argv[4]))

    def listen() -> None:
        try:
            attend(0, 1, _versions("torch", "unisono", "lightning", "pytorch-lightning"), rank.actions)
        finally:
            _leave()

    threading.Thread(target=listen).start()
    rank.turns.run(rank.prepare, rank.train)


def _versions(*packages: str) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _leave() -> None:
    """Local: end at once, with what was started: nobody waits for the end of a training that is being measured."""
    for child in psutil.Process().children(recursive=True):
        child.kill()
    os._exit(0)


if __name__ == "__main__":
    main()
