"""Optimisers by name, class and function; what cannot work is refused with the reason."""

# ruff: noqa: ARG005 - what a function is given goes by the names of its arguments, used or not

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._inductor.config  # the first optimiser loads it, and it sets a variable of the environment
from torch import nn
from torch.optim import Optimizer

from unisono.errors import UsageError
from unisono.optim.optimizers import make_optimizer, reads_lr

NAMES = ("sgd", "adam", "AdamW", "rmsprop", "adagrad", "nadam", "radam", "adamax", "adadelta", "asgd", "rprop", "adafactor")


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def make(spec: Any, options: dict[str, Any] | None = None, model: nn.Module | None = None) -> Optimizer:
    model = model or net()
    return make_optimizer(spec, [p for p in model.parameters() if p.requires_grad], 0.25, options or {}, model)


@pytest.mark.parametrize(
    "name", [*NAMES, pytest.param("muon", marks=pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="old"))]
)
def test_a_name_in_any_case_takes_a_step(name: str) -> None:
    model = nn.Linear(3, 4, bias=False)
    made = make(name, model=model)
    assert type(made).__name__.lower() == name.lower()
    assert made.param_groups[0]["lr"] == 0.25
    before = model.weight.detach().clone()
    model(torch.ones(1, 3)).square().sum().backward()
    made.step()
    assert not torch.equal(before, model.weight)


def test_options_reach_the_optimizer_and_lists_become_tuples() -> None:
    assert make("sgd", {"momentum": 0.9, "nesterov": True}).param_groups[0]["momentum"] == 0.9
    assert make("adam", {"betas": [0.8, 0.9]}).param_groups[0]["betas"] == (0.8, 0.9)


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("adan", {}, r"unknown optimizer 'adan'; did you mean 'adam'.*Known: .*sgd"),
        ("sgd", {"momentun": 0.9}, r"unknown option 'momentun' of optimizer sgd; did you mean 'momentum'"),
        ("sgd", {"momentum": "0.9"}, r"momentum of optimizer sgd must be a number; received '0.9'"),
        ("sgd", {"momentum": True}, r"must be a number; received True"),
        ("sgd", {"nesterov": 1}, r"nesterov of optimizer sgd must be true or false; received 1"),
        ("sgd", {"lr": 0.1}, r"unknown option 'lr' of optimizer sgd"),
        ("sgd", {"momentum": -1.0}, r"optimizer sgd cannot be made: Invalid momentum value: -1.0"),
        ("adam", {"betas": [0.9]}, r"betas of optimizer adam must be \(a number, a number\)"),
        ("adam", {"betas": [0.9, "x"]}, r"betas of optimizer adam must be"),
        (3, {}, r"optimizer of the task must be a name, or a function .* received an int"),
        (lambda params: 3, {}, r"returned an int; it must return a torch.optim.Optimizer"),
        (lambda: None, {}, r"takes no argument"),
        (lambda params, speed: None, {}, r"needs speed; give it \(--set optimizer.speed=VALUE\)"),
        (lambda params: torch.optim.SGD(params), {"momentum": 0.9}, r"unknown option 'momentum' of .*; known: none"),
        (lambda params: torch.optim.SGD([nn.Parameter(torch.ones(7))]), {}, r"1 parameters that are not of this model.*\(7,\)"),
        (lambda params: torch.optim.SGD([]), {}, r"cannot be made: optimizer got an empty parameter list"),
    ],
)
def test_mistakes_are_named(spec: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(spec, options)


class Mine(torch.optim.LBFGS):
    """A subclass is no way round."""


class NeedsClosure(torch.optim.SGD):
    def step(self, closure: Callable[[], float]) -> float:  # type: ignore[override]
        return closure()


@pytest.mark.parametrize(
    "spec", ["lbfgs", "LBFGS", torch.optim.LBFGS, Mine, NeedsClosure, lambda params: torch.optim.LBFGS(params)]
)
def test_several_evaluations_in_a_step_are_refused(spec: Any) -> None:
    with pytest.raises(UsageError, match="evaluates the loss several times in one step"):
        make(spec)


@pytest.mark.parametrize("spec", ["sparseadam", torch.optim.SparseAdam, lambda params: torch.optim.SparseAdam(params)])
def test_sparse_gradients_are_refused(spec: Any) -> None:
    with pytest.raises(UsageError, match="sparse gradients"):
        make(spec)


def test_a_function_is_given_what_it_takes() -> None:
    model = net()

    def of_model(model: nn.Module, lr: float, decay: float = 0.0) -> Optimizer:
        first, second = model.children()
        groups: list[dict[str, Any]] = [{"params": first.parameters(), "lr": lr / 10}, {"params": second.parameters()}]
        return torch.optim.SGD(groups, lr, weight_decay=decay)

    made = make(of_model, {"decay": 0.5}, model)
    assert [group["lr"] for group in made.param_groups] == [0.025, 0.25]
    assert made.param_groups[0]["weight_decay"] == 0.5
    assert make(lambda params, lr: torch.optim.SGD(params, lr)).param_groups[0]["lr"] == 0.25
    assert make(lambda params, **more: torch.optim.SGD(params, **more), {"momentum": 0.5}).param_groups[0]["momentum"] == 0.5
    with pytest.raises(UsageError, match="takes `model`, but there is no model"):
        make_optimizer(of_model, list(model.parameters()), 0.1, {})
    with_both: Any = lambda params, lr, model: torch.optim.SGD(model[0].parameters(), lr)  # noqa: E731
    assert len(make(with_both).param_groups[0]["params"]) == 2, "a subset is allowed"


def test_a_class_and_a_partial_of_one_work() -> None:
    assert make(torch.optim.AdamW, {"weight_decay": 0.5}).param_groups[0]["weight_decay"] == 0.5
    assert make(functools.partial(torch.optim.SGD, momentum=0.5)).param_groups[0]["lr"] == 0.25
    assert make(functools.partial(torch.optim.SGD, lr=3.0)).param_groups[0]["lr"] == 3.0, "what the user fixed stays"


def test_a_parameter_in_two_groups_is_refused_by_name() -> None:
    class Lenient(torch.optim.SGD):
        """Torch itself refuses it too, but an optimiser of somebody else need not."""

        def __init__(self, params: list[nn.Parameter]) -> None:
            super().__init__(params)
            self.param_groups.append({**self.param_groups[0], "params": params[:1]})

    with pytest.raises(UsageError, match=r"holds 1 parameters twice, the first 0.weight"):
        make(lambda params: Lenient(params))
    with pytest.raises(UsageError, match="more than one parameter group"):
        make(lambda params: torch.optim.SGD([{"params": params}, {"params": params[:1]}]))


def test_frozen_parameters_of_the_model_may_be_in_groups() -> None:
    model = net()
    model[0].requires_grad_(False)
    made = make(lambda model, lr: torch.optim.SGD(model.parameters(), lr), model=model)
    assert len(made.param_groups[0]["params"]) == 4
    with pytest.raises(UsageError, match="no parameter of this model"):
        make(lambda model, lr: torch.optim.SGD(model[0].parameters(), lr), model=model)


def test_whether_the_learning_rate_is_read() -> None:
    assert reads_lr("sgd")
    assert reads_lr(torch.optim.AdamW)
    assert reads_lr(lambda params, lr: None)
    assert reads_lr(lambda params, **more: None)
    assert not reads_lr(lambda params: None)
    assert not reads_lr(functools.partial(torch.optim.SGD, lr=0.1))
