"""Buffers in a checkpoint: all of them, also those that a state_dict leaves out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from unisono.model.losses import resolve_loss
from unisono.model.packed import pack, unpack
from unisono.model.torch.adapter import TorchAdapter, trainable
from unisono.model.torch.body import LossBody


class Net(nn.Module):
    mean: Tensor
    seen: Tensor
    cache: Tensor
    late: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("mean", torch.zeros(3), persistent=False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64), persistent=False)
        self.register_buffer("cache", torch.zeros(2), persistent=False)
        self.register_buffer("late", None)

    def forward(self, inputs: Tensor) -> Any:
        self.mean.lerp_(inputs.mean(0), 0.5)
        self.seen += len(inputs)
        self.cache = torch.arange(len(inputs)).float()
        self.late = inputs.sum()
        if not hasattr(self.layer, "norm"):
            self.layer.register_buffer("norm", inputs.norm(), persistent=False)
        return self.layer(inputs - self.mean)


def adapter(model: nn.Module) -> TorchAdapter:
    made = TorchAdapter(
        model,
        LossBody(resolve_loss("mse", {})),
        {"": trainable(model)},
        torch.device("cpu"),
        lambda numel, dtype: torch.empty(numel, dtype=dtype),
    )
    made.parts[""].set_optimizer(torch.optim.SGD(made.parts[""].tensors, lr=0.1))
    return made


def test_all_buffers_come_back_wherever_they_are() -> None:
    one, other = adapter(Net()), adapter(Net())
    one.model(torch.arange(12.0).reshape(4, 3))
    tensors: dict[str, Tensor] = {}
    plain = pack({**one.state(), "kept": one.user_state()}, tensors, "state")
    other.restore(unpack(plain, {name: tensor.clone() for name, tensor in tensors.items()}))
    found, expected = dict(other.model.named_buffers()), dict(one.model.named_buffers())
    assert found.keys() == expected.keys() == {"mean", "seen", "cache", "late", "layer.norm"}
    for name, buffer in expected.items():
        assert torch.equal(found[name], buffer) and found[name].any(), name
    assert set(other.model.state_dict()) == {"late", "layer.weight", "layer.bias"}, "which of them are weights stays as it was"
    before = [vector.clone() for vector in other.statistics()]
    other.model(torch.ones(4, 3))
    assert not torch.equal(before[0], other.statistics()[0]), "running statistics are still parts of the vector"


def test_a_buffer_may_be_changed_between_the_passes() -> None:
    """They lie in one vector, and autograd must not take a change of one of them for a change of another that it needs."""

    class Normed(Net):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, inputs: Tensor) -> Any:
            return super().forward(self.norm(inputs))

    made = adapter(Normed())
    made.model(torch.arange(12.0).reshape(4, 3)).sum().backward()
    assert all(parameter.grad is not None for parameter in made.model.parameters())
