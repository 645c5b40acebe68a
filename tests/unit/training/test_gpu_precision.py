"""What a precision means is said; TF32 belongs to GPUs, and to one training."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.training.device_path import task_of, train_with
from unisono.errors import UsageError
from unisono.training.determinism import SWITCHES
from unisono.training.gpu_precision import describe_precision, has_channels_last, lay_out, set_tf32

CPU, GPU = torch.device("cpu"), torch.device("cuda")
PARTS = [SWITCHES[name] for name in ("cuda_matmul_precision", "cudnn_conv_precision", "cudnn_rnn_precision")]


def test_tf32_is_refused_on_a_cpu() -> None:
    with (
        pytest.raises(UsageError, match=r"--precision tf32 is a form of float32 that NVIDIA GPUs have, .*; use float32"),
        set_tf32(CPU),
    ):
        pass


def test_a_process_is_as_it_was() -> None:
    before = [part.read() for part in PARTS]
    found: list[Any] = []
    with pytest.raises(ZeroDivisionError), set_tf32(GPU):
        found += [part.read() for part in PARTS]
        raise ZeroDivisionError
    assert found == ["tf32"] * 3
    assert [part.read() for part in PARTS] == before


def test_it_is_said() -> None:
    assert describe_precision("bf16").startswith("precision bf16: products and convolutions in bfloat16")
    assert describe_precision("tf32").startswith("precision tf32: products and convolutions of float32 are rounded")
    with set_tf32(GPU):
        assert "products in TF32 (10 bits), convolutions in TF32" in describe_precision("float32")


def test_channels_lie_last_where_a_gpu_wants_them() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(3, 1))
    for precision in ("float32", "tf32"):
        assert lay_out(model, precision) == "" and not has_channels_last(model)
    assert lay_out(nn.Linear(2, 2), "bf16") == ""
    assert lay_out(model, "bf16") == "convolutions: channels lie last in memory" and has_channels_last(model)


def test_an_order_in_memory_changes_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of a layout with channels last are saved and summed as others are."""

    def model(order: torch.memory_format) -> nn.Module:
        made: Any = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(48, 4))
        found: nn.Module = made.to(memory_format=order)
        return found

    train = train_with(monkeypatch)
    plain = train(task_of(model=partial(model, torch.contiguous_format), metrics=()))
    found = train(task_of(model=partial(model, torch.channels_last), metrics=()))
    for name, tensor in plain.weights.items():
        torch.testing.assert_close(found.weights[name], tensor, rtol=1e-4, atol=1e-6)
