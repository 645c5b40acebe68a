"""How large a learning rate is stable with old gradients, and what a run is told of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from unisono.algorithms.base import find_algorithm
from unisono.algorithms.downpour import stable_share


def is_stable(lr_times_curvature: float, momentum: float, staleness: int) -> bool:
    """By the roots of the recurrence, which is written out here for fresh gradients and for old ones."""
    if staleness == 0:
        polynomial = np.array([1.0, lr_times_curvature - 1 - momentum, momentum])
    else:
        polynomial = np.zeros(staleness + 2)
        polynomial[:3] = 1.0, -1 - momentum, momentum
        polynomial[-1] += lr_times_curvature
    return bool(np.abs(np.roots(polynomial)).max() < 1)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("staleness", [0, 1, 2, 7])
def test_the_stable_share_is_where_roots_leave_the_unit_circle(momentum: float, staleness: int) -> None:
    limit = stable_share(momentum, staleness) * 2 * (1 + momentum)
    assert is_stable(0.999 * limit, momentum, staleness)
    assert not is_stable(1.001 * limit, momentum, staleness)


def advice(staleness: float, group: dict[str, Any], **options: Any) -> str:
    kind: Any = find_algorithm("downpour")
    part = SimpleNamespace(running=SimpleNamespace(param_groups=[group]))
    adapter = SimpleNamespace(parts={"": part})
    rule = kind(Mock(), adapter, kind.Options(**options), world=Mock(), layout=Mock(), make_evaluator=Mock())
    return str(rule.advice(staleness))


@pytest.mark.parametrize("staleness", [0.0, 1.0, 4.0, 40.0])
def test_the_defaults_need_no_advice(staleness: float) -> None:
    assert not advice(staleness, {"momentum": 0.9})


@pytest.mark.parametrize(
    ("staleness", "group", "options", "remedy"),
    [
        (1.0, {"momentum": 0.9}, {"optimizer_on": "server", "damping": "off"}, "damping=staleness and optimizer_on=worker"),
        (1.0, {"betas": (0.9, 0.999)}, {"optimizer_on": "server"}, "optimizer_on=worker"),
        (4.0, {}, {"optimizer_on": "server", "damping": "off"}, "damping=staleness and optimizer_on=worker"),
        (2.0, {"momentum": 0.9}, {"damping": "off"}, "damping=staleness"),
    ],
)
def test_a_setting_of_which_little_is_stable_is_named(staleness: float, group: dict[str, Any], options: Any, remedy: str) -> None:
    assert f"Use {remedy} (the defaults)" in advice(staleness, group, **options)


def test_the_form_of_the_paper_without_momentum_bears_one_more_worker() -> None:
    assert not advice(1.0, {}, optimizer_on="server", damping="off")
