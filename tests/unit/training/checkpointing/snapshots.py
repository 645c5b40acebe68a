"""Snapshots for the tests of checkpoints, and whether two are the same to the last bit."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unisono.training.checkpointing.checkpoint import Snapshot

MADE_BY = {"task": {"sha256": "ab" * 32}, "num_workers": 2, "versions": {"unisono": "0"}}
BEST_SINCE = 3
"""`best` is another one from this step on, and the same before and after."""


def snapshot(step: int, numel: int = 300) -> Snapshot:
    """Pure: another one for each step, with values of all kinds."""
    generator = torch.Generator().manual_seed(step)
    tensors = {
        "weight": torch.randn(3, numel // 3, generator=generator),
        "half": torch.randn(7, generator=generator).bfloat16(),
        "double": torch.randn(2, 2, generator=generator, dtype=torch.float64),
        "steps": torch.tensor(step),
        "mask": torch.tensor([True, False, True]),
        "empty": torch.zeros(0, 4),
        "not numbers": torch.tensor([0x7FC00001, -1, 0x7F800001, -0x800000], dtype=torch.int32).view(torch.float32),
        "turned": torch.randn(4, 5, generator=generator).t(),
    }
    version = 0 if step < BEST_SINCE else 1
    best = {"weight": torch.full((50,), float(version)), "count": torch.tensor(version)}
    number = random.Random(step)
    progress = {
        "step": step,
        "losses": [number.random(), 5e-324, -0.0, 1.7976931348623157e308, float("nan"), float("inf"), float("-inf"), 2**70],
        "name": 'ü "quoted"\n',
        "none": None,
        "flag": True,
        "nested": {"metric": {"value": number.gauss(0, 1e-9)}},
    }
    return Snapshot(step, tensors, progress, best, version)


def bits(value: Any) -> Any:
    """Pure: equal for values that are the same to the last bit, of the same types."""
    if isinstance(value, Tensor):
        return str(value.dtype), tuple(value.shape), value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(value, float):
        return "float", struct.pack("<d", value)
    if isinstance(value, Mapping):
        return {key: bits(part) for key, part in value.items()}
    if isinstance(value, list):
        return [bits(part) for part in value]
    return type(value), value


def same(left: Snapshot, right: Snapshot) -> bool:
    return all(bits(getattr(left, name)) == bits(getattr(right, name)) for name in Snapshot.__dataclass_fields__)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())
