"""What an optimiser has learned, taken up by another one: of the whole vector or tensor by tensor, of torch or of anybody else."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unisono.errors import UsageError
from unisono.model.packed import pack, unpack
from unisono.model.torch.parameters import FlatParameters


def in_two(parameters: list[nn.Parameter]) -> list[dict[str, Any]]:
    return [{"params": parameters[:1], "lr": 0.2}, {"params": parameters[1:]}]


class Following(Optimizer):
    """Keeps what it has learned wherever one can: for all parameters together, in attributes, in its group."""

    state: Any

    def __init__(self, params: Iterable[nn.Parameter], lr: float = 0.1, decay: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "length": torch.zeros(())})
        self.decay = decay
        self.params = [parameter for group in self.param_groups for parameter in group["params"]]
        self.means: dict[nn.Parameter, Tensor] = defaultdict(lambda: torch.zeros(()))
        self.num_steps = 0
        self.tell = print

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002
        self.num_steps += 1
        total = self.state["all"].setdefault("total", torch.zeros(2))
        self.param_groups[0]["length"] += 0.5
        for parameter in self.params:
            if parameter.grad is None:
                continue
            self.state[parameter].setdefault("parts", [torch.zeros(3), 0])[0].add_(parameter.grad.norm())
            total += parameter.grad.norm()
            self.means[parameter] = self.decay * self.means[parameter] + parameter.grad
            length = self.param_groups[0]["lr"] / (self.num_steps + total[0] + self.state[parameter]["parts"][0][1])
            parameter.sub_(self.means[parameter] * length / self.param_groups[0]["length"])


class Writing(Following):
    """Knows itself what it needs."""

    def __init__(self, params: Iterable[nn.Parameter], **settings: float) -> None:
        super().__init__(params, **settings)
        self.history = deque([1.0], maxlen=3)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002
        self.history.append(float(self.num_steps))
        self.param_groups[0]["length"] += sum(self.history)
        super().step()

    def state_dict(self) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in ("param_groups", "state", "num_steps")}
        groups = [{name: value for name, value in group.items() if name != "params"} for group in found["param_groups"]]
        state = [self.state[parameter] for parameter in self.params]
        means = [self.means[parameter] for parameter in self.params]
        return {
            **found,
            "param_groups": groups,
            "state": [self.state["all"], *state],
            "means": means,
            "history": list(self.history),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update(saved)
        for key, state in zip(("all", *self.params), state_dict["state"], strict=True):
            self.state[key] = state
        self.means = dict(zip(self.params, state_dict["means"], strict=True))
        self.num_steps = state_dict["num_steps"]
        self.history = deque(state_dict["history"], maxlen=3)


class Losing(Writing):
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({**state_dict, "num_steps": 0})


class Hiding(Following):
    """Has things of which nobody can tell what they have learned."""

    def __init__(self, params: Iterable[nn.Parameter], what: str) -> None:
        super().__init__(params)
        if what == "queue":
            self.queue = deque([1.0])
        elif what == "inner":
            self.inner = torch.optim.SGD(self.params, lr=0.1, momentum=0.9)
        elif what == "random":
            self.random = np.random.default_rng(0)
        else:
            self.state[("a", "pair")] = {"norm": 0.0}


Make = Callable[[list[nn.Parameter]], Optimizer]
MAKERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.1),
    "two groups": lambda p: torch.optim.Adam(in_two(p), lr=0.1),
    "with more state": Following,
    "with its own state_dict": Writing,
}


def made(make: Make) -> FlatParameters:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
    held = FlatParameters(list(model.named_parameters()), lambda numel, dtype: torch.empty(numel, dtype=dtype))
    held.set_optimizer(make(held.tensors))
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
def test_another_optimizer_resumes_with_the_same_bits(name: str, unused: int | None) -> None:
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


@pytest.mark.parametrize("kind", [Following, Writing])
def test_settings_of_any_kind_are_those_of_the_new_one(kind: Any) -> None:
    one, other = made(kind), made(lambda p: kind(p, lr=0.5, decay=0.5))
    move(one, 1)
    other.load_optimizer_state(through_a_file(one.optimizer_state()))
    running: Any = other.running
    assert (running.param_groups[0]["lr"], running.decay, running.num_steps) == (0.5, 0.5, 1)
    assert all(own is known for own, known in zip(running.params, other.tensors, strict=True))


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("queue", r"a deque \(queue\)"),
        ("inner", r"a SGD \(inner\)"),
        ("random", r"a Generator \(random\)"),
        ("pair", "state under a key of type tuple"),
    ],
)
def test_what_cannot_be_kept_is_refused(what: str, named: str) -> None:
    held = made(lambda p: Hiding(p, what))
    with pytest.raises(UsageError, match=f"Hiding has {named}.*define state_dict and load_state_dict"):
        held.optimizer_state()


def test_a_state_that_does_not_come_back_is_refused() -> None:
    one, other = made(Losing), made(Losing)
    move(one, 1)
    with pytest.raises(UsageError, match="load_state_dict of Losing does not restore what its state_dict returned"):
        other.load_optimizer_state(through_a_file(one.optimizer_state()))


def test_the_state_of_another_optimizer_is_refused() -> None:
    one, other = made(MAKERS["adam"]), made(MAKERS["sgd"])
    with pytest.raises(ValueError, match="state of Adam cannot be loaded into SGD"):
        other.load_optimizer_state(through_a_file(one.optimizer_state()))
