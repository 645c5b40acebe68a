"""What `--precision` means on a GPU, for products and for convolutions, and the order of a model's tensors in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from unisono.errors import UsageError

BACKENDS: Any = torch.backends
"""Their attributes are made at run time, so the type checker does not know them."""
TF32, BF16 = "tf32", "bf16"


@contextmanager
def set_precision(precision: str, device: torch.device) -> Iterator[None]:
    """Context manager, local: with "tf32", products and convolutions of float32 are rounded to 10 bits on the way; afterwards this
    process is as it was."""
    if precision != TF32:
        yield
        return
    if device.type != "cuda":
        raise UsageError("--precision tf32 is a form of float32 that NVIDIA GPUs have, and there is none here; use float32")
    parts = (BACKENDS.cuda.matmul, BACKENDS.cudnn.conv, BACKENDS.cudnn.rnn)
    before = [part.fp32_precision for part in parts]
    for part in parts:
        part.fp32_precision = TF32
    try:
        yield
    finally:
        for part, held in zip(parts, before, strict=True):
            part.fp32_precision = held


def describe_precision(precision: str, device: torch.device) -> str:
    """Local: the precision of a training on a GPU, in words; empty on a CPU."""
    if device.type != "cuda":
        return ""
    if precision == BF16:
        return "precision bf16: products and convolutions in bfloat16 (8 bits), weights, sums and updates in float32"
    if precision == TF32:
        return "precision tf32: products and convolutions of float32 are rounded to TF32 (10 bits) on the way"
    shown = {
        what: "TF32 (10 bits)" if part.fp32_precision == TF32 else "float32"
        for what, part in (("products", BACKENDS.cuda.matmul), ("convolutions", BACKENDS.cudnn.conv))
    }
    return (
        f"precision float32: {', '.join(f'{what} in {how}' for what, how in shown.items())}, as PyTorch does unless told otherwise"
    )


def lay_out(model: nn.Module, device: torch.device, precision: str) -> str:
    """Local: puts the channels of a network of convolutions last in memory where a GPU computes them in half precision, as its
    kernels want them. Returns what a user should know about it."""
    if device.type != "cuda" or precision != BF16 or not any(isinstance(one, nn.Conv2d) for one in model.modules()):
        return ""
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return "convolutions: channels lie last in memory"


def has_channels_last(model: nn.Module) -> bool:
    """Pure: whether weights of convolutions lie in memory with their channels last, so that images should too."""
    return any(
        one.dim() == 4 and one.is_contiguous(memory_format=torch.channels_last) and not one.is_contiguous()
        for one in model.parameters()
    )
