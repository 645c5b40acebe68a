"""What `--precision` means on a GPU, for products and for convolutions, and the order of a model's tensors in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from unisono.errors import UsageError
from unisono.training.determinism import SWITCHES

TF32, BF16 = "tf32", "bf16"


@contextmanager
def set_tf32(device: torch.device) -> Iterator[None]:
    """Context manager, local: products and convolutions of float32 are rounded to 10 bits on the way; afterwards this process is as
    it was."""
    if device.type != "cuda":
        raise UsageError("--precision tf32 is a form of float32 that NVIDIA GPUs have, and there is none here; use float32")
    switches = [SWITCHES[name] for name in ("cuda_matmul_precision", "cudnn_conv_precision", "cudnn_rnn_precision")]
    before = [one.read() for one in switches]
    for one in switches:
        one.write(TF32)
    try:
        yield
    finally:
        for one, held in zip(switches, before, strict=True):
            one.write(held)


def describe_precision(precision: str) -> str:
    """Local: the precision of a training on a GPU, in words."""
    if precision == BF16:
        return "precision bf16: products and convolutions in bfloat16 (8 bits), weights, sums and updates in float32"
    if precision == TF32:
        return "precision tf32: products and convolutions of float32 are rounded to TF32 (10 bits) on the way"
    shown = (
        f"{what} in {'TF32 (10 bits)' if SWITCHES[name].read() == TF32 else 'float32'}"
        for what, name in (("products", "cuda_matmul_precision"), ("convolutions", "cudnn_conv_precision"))
    )
    return f"precision float32: {', '.join(shown)}, as PyTorch does unless told otherwise"


def lay_out(model: nn.Module, precision: str) -> str:
    """Local: puts the channels of a network of convolutions last in memory where a GPU computes them in half precision, as its
    kernels want them. Returns what a user should know about it."""
    if precision != BF16 or not any(isinstance(one, nn.Conv2d) for one in model.modules()):
        return ""
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return "convolutions: channels lie last in memory"


def has_channels_last(model: nn.Module) -> bool:
    """Pure: whether weights of convolutions lie in memory with their channels last, so that images should too."""
    return any(
        one.dim() == 4 and one.is_contiguous(memory_format=torch.channels_last) and not one.is_contiguous()
        for one in model.parameters()
    )
