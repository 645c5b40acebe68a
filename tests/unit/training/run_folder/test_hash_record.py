"""Hashes of weights: what differs is found, at its first step."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from unisono.training.run_folder.hash_record import HashRecord, first_difference, read_hashes, short_hash


def test_one_bit_in_one_tensor_at_one_step(tmp_path: Path) -> None:
    found = []
    for name in ("one", "other"):
        torch.manual_seed(0)
        last = nn.Linear(3, 2)
        model = nn.Sequential(nn.Linear(3, 3), last)
        record = HashRecord(tmp_path / name, 2, model)
        for step in range(1, 9):
            if name == "other" and step == 5:
                last.bias.data.view(torch.int32)[0] ^= 1
            record.after_step(step)
        found.append(read_hashes(tmp_path / name))
    assert list(found[0]) == [2, 4, 6, 8]
    assert first_difference(*found) == (6, ["1.bias"])
    assert first_difference(found[0], found[0]) is None
    assert first_difference({2: found[0][2]}, found[1]) is None, "only steps that both have are compared"


def test_a_resumed_attempt_replaces_the_hashes_of_the_one_before(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)
    HashRecord(tmp_path / "hashes", 1, model).after_step(1)
    model.weight.data += 1
    HashRecord(tmp_path / "hashes", 1, model).after_step(1)
    assert read_hashes(tmp_path / "hashes")[1]["weight"] == short_hash({"weight": model.weight})
