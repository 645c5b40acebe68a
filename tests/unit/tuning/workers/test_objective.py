"""Objectives that an earlier version has written."""

from __future__ import annotations

import io
from typing import cast

import pytest

import unisono
from unisono.tuning.workers.messages import MessageQueue
from unisono.tuning.workers.objective import ObjectiveTrial, ObjectiveUnpickler


def test_public_names_are_found_where_an_earlier_version_had_them() -> None:
    assert ObjectiveUnpickler(io.BytesIO(b"cunisono.data.digits\ndigits\n.")).load() is unisono.digits
    assert ObjectiveUnpickler(io.BytesIO(b"cunisono.task\nTask\n.")).load() is unisono.Task


@pytest.mark.parametrize("name", [b"unisono.data.digits\nnothing", b"elsewhere.module\nTask"])
def test_what_is_nowhere_raises_as_usual(name: bytes) -> None:
    with pytest.raises((ImportError, AttributeError)):
        ObjectiveUnpickler(io.BytesIO(b"c" + name + b"\n.")).load()


@pytest.mark.parametrize("name", ["study", "system_attrs", "suggest_loguniform"])
def test_what_a_trial_does_not_have_says_what_there_is(name: str) -> None:
    with pytest.raises(AttributeError, match=f"trial.{name} is not available in un.tune, .* without Optuna's study; use number"):
        getattr(ObjectiveTrial({}, cast(MessageQueue, None)), name)
