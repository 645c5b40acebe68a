"""Objectives that an earlier version has written."""

from __future__ import annotations

import io

import pytest

import unisono
from unisono.tuning.workers.objective import ObjectiveUnpickler


def test_public_names_are_found_where_an_earlier_version_had_them() -> None:
    assert ObjectiveUnpickler(io.BytesIO(b"cunisono.data.digits\ndigits\n.")).load() is unisono.digits
    assert ObjectiveUnpickler(io.BytesIO(b"cunisono.task\nTask\n.")).load() is unisono.Task


@pytest.mark.parametrize("name", [b"unisono.data.digits\nnothing", b"elsewhere.module\nTask"])
def test_what_is_nowhere_raises_as_usual(name: bytes) -> None:
    with pytest.raises((ImportError, AttributeError)):
        ObjectiveUnpickler(io.BytesIO(b"c" + name + b"\n.")).load()
