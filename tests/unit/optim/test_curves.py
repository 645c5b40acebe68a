"""Schedules by name, against their formulas and against torch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch._inductor.config  # the first optimiser loads it, and it sets a variable of the environment
from torch.optim import lr_scheduler

from unisono.errors import UsageError
from unisono.optim.curves import SCHEDULES, make_curve


def factors(name: str, options: dict[str, Any] | None = None, num_steps: int = 40, steps_per_epoch: int = 10) -> list[float]:
    curve = make_curve(name, options or {}, num_steps=num_steps, steps_per_epoch=steps_per_epoch)
    return [curve(step) for step in range(num_steps + 1)]


def of_torch(make: Any, num_steps: int = 40) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = make(optimizer)
    found = [optimizer.param_groups[0]["lr"]]
    for _ in range(num_steps):
        optimizer.step()
        scheduler.step()
        found.append(optimizer.param_groups[0]["lr"])
    return found


@pytest.mark.parametrize(
    ("name", "options", "make"),
    [
        ("cosine", {"final_factor": 0.1}, lambda o: lr_scheduler.CosineAnnealingLR(o, 40, eta_min=0.1)),
        ("linear", {"final_factor": 0.2}, lambda o: lr_scheduler.LinearLR(o, 1.0, 0.2, total_iters=40)),
        ("polynomial", {"power": 3}, lambda o: lr_scheduler.PolynomialLR(o, 40, power=3)),
        ("step", {"every_epochs": 1, "gamma": 0.5}, lambda o: lr_scheduler.StepLR(o, 10, gamma=0.5)),
        ("exponential", {"every_steps": 1, "gamma": 0.9}, lambda o: lr_scheduler.ExponentialLR(o, 0.9)),
        ("constant", {}, lambda o: lr_scheduler.ConstantLR(o, 1.0)),
    ],
)
def test_equal_to_torch(name: str, options: dict[str, Any], make: Any) -> None:
    assert factors(name, options) == pytest.approx(of_torch(make), abs=1e-12)


def test_one_cycle() -> None:
    found = factors("one_cycle")
    assert found[0] == pytest.approx(0.04)
    assert found[12] == max(found) == 1.0
    assert found[40] == pytest.approx(4e-6)


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name not in ("step", "one_cycle")])
@pytest.mark.parametrize("warmup", [{"warmup_steps": 15}, {"warmup_epochs": 1.5}])
def test_a_warmup_rises_in_a_line_to_the_full_rate(name: str, warmup: dict[str, Any]) -> None:
    found = factors(name, warmup)
    assert found[:16] == pytest.approx([(step + 1) / 16 for step in range(16)])
    assert max(found) == pytest.approx(1.0)


def test_inverse_square_root_is_half_at_four_times_the_warmup() -> None:
    found = factors("inverse_sqrt", {"warmup_steps": 9})
    assert found[39] == pytest.approx(0.5)
    assert factors("inverse_sqrt")[3] == pytest.approx(0.5)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_factor_is_a_finite_number_also_beyond_the_end(name: str) -> None:
    options = {"every_epochs": 1} if name == "step" else {}
    for num_steps in (1, 2, 40):
        curve = make_curve(name, options, num_steps=num_steps, steps_per_epoch=1)
        assert all(math.isfinite(curve(step)) and curve(step) >= 0 for step in (*range(num_steps), 10 * num_steps))
        assert curve(0) > 0


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cosin", {}, r"unknown schedule 'cosin'; did you mean 'cosine'"),
        ("cosine", {"warmup": 5}, r"unknown option 'warmup' of schedule cosine; did you mean 'warmup_"),
        ("cosine", {"warmup_steps": 5, "warmup_epochs": 1}, r"both warmup_steps and warmup_epochs"),
        ("cosine", {"warmup_steps": 41}, r"warmup_steps must lie in 0..40"),
        ("cosine", {"warmup_steps": 2.5}, r"must be a whole number"),
        ("cosine", {"warmup_steps": -1}, r"not negative; received -1"),
        ("one_cycle", {"warmup_steps": -1}, r"not negative; received -1"),
        ("cosine", {"final_factor": "0"}, r"must be a number; received '0'"),
        ("cosine", {"final_factor": -0.1}, r"final_factor of the schedule must be at least 0"),
        ("step", {}, r"needs every_epochs or every_steps"),
        ("step", {"every_epochs": 0}, r"every_steps of the schedule must be at least 1"),
        ("exponential", {"gamma": 0}, r"gamma of the schedule must be above 0"),
        ("polynomial", {"power": float("nan")}, r"must be finite"),
    ],
)
def test_mistakes_are_named(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        factors(name, options)
