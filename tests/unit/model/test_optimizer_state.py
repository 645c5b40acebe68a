"""What an optimiser has learned, taken up by another one: of the whole vector or tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unisono.model.packed import pack, unpack
from unisono.model.parameters import FlatParameters


def in_two(parameters: list[nn.Parameter]) -> list[dict[str, Any]]:
    return [{"params": parameters[:1], "lr": 0.2}, {"params": parameters[1:]}]


Make = Callable[[list[nn.Parameter]], Optimizer]
MAKERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.1),
    "two groups": lambda p: torch.optim.Adam(in_two(p), lr=0.1),
}


def made(make: Make) -> FlatParameters:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
    held = FlatParameters(list(model.named_parameters()), lambda numel, dtype: torch.empty(numel, dtype=dtype))
    held.learn_with(make(held.tensors))
    return held


def move(held: FlatParameters, seed: int, unused: int | None = None) -> None:
    generator = torch.Generator().manual_seed(seed)
    for view in held.layout.views(held.gradients).values():  # the gaps between them stay zero
        view.copy_(torch.randn(view.shape, generator=generator))
    uses = np.ones(len(held.tensors))
    if unused is not None:
        uses[unused] = 0
    held.update([{} for _ in held.running.param_groups], uses)


def through_a_file(state: dict[str, Any]) -> Any:
    tensors: dict[str, Tensor] = {}
    plain = pack(state, tensors, "optimizer")
    return unpack(plain, {name: tensor.clone() for name, tensor in tensors.items()})


@pytest.mark.parametrize("unused", [None, 1])
@pytest.mark.parametrize("name", MAKERS)
def test_another_goes_on_with_the_same_bits(name: str, unused: int | None) -> None:
    """`unused`: a tensor that some steps leave out, from which on each tensor has a state of its own."""
    one, other = made(MAKERS[name]), made(MAKERS[name])
    move(one, 1)
    move(one, 2, unused)
    for own, copied in zip(other.tensors, one.tensors, strict=True):
        own.data.copy_(copied.data)
    other.load_optimizer_state(through_a_file(one.optimizer_state()))
    for held in (one, other):
        move(held, 3)
    for own, copied in zip(other.tensors, one.tensors, strict=True):
        assert torch.equal(own, copied)


def test_settings_are_those_of_the_new_one() -> None:
    """They may have been changed on purpose; what was learned stays."""
    one = made(MAKERS["sgd"])
    move(one, 1)
    other = made(lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.5, weight_decay=0.1))
    other.load_optimizer_state(through_a_file(one.optimizer_state()))
    (group,) = other.running.param_groups
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.5, 0.5, 0.1)
    (state,) = other.running.state.values()
    assert torch.equal(state["momentum_buffer"], next(iter(one.running.state.values()))["momentum_buffer"])


def test_what_an_optimizer_keeps_in_its_group_is_kept() -> None:
    one, other = made(MAKERS["two groups"]), made(MAKERS["two groups"])
    one.running.param_groups[1]["d"] = 0.25
    other.load_optimizer_state(through_a_file(one.optimizer_state()))
    assert other.running.param_groups[1]["d"] == 0.25
