"""Arguments that `connect` refuses before it contacts other processes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from unisono.cluster.launchers.local import resolve
from unisono.cluster.topology import Overrides
from unisono.comm.connect import connect
from unisono.errors import UsageError

ALONE = resolve({}, Overrides())


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, "soon", True])
def test_an_invalid_time_limit_is_refused(value: Any) -> None:
    message = rf"time_limit_s must be a number of seconds above 0; received {value!r} \(connect\(time_limit_s"
    with pytest.raises(UsageError, match=message):
        connect(time_limit_s=value, topology=ALONE, quiet=True)
    with pytest.raises(UsageError, match=message):
        connect(topology=replace(ALONE, time_limit_s=value), quiet=True)


@pytest.mark.parametrize("value", [1, 0.5])
def test_a_time_limit_is_taken(value: float) -> None:
    with connect(time_limit_s=value, topology=ALONE, quiet=True) as comm:
        assert comm.time_limit_s == value
