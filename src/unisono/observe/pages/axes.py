"""Maps values to places along an axis, and draws axes with ticks at round numbers. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unisono.observe.pages.svg import element, label, line, number_text, safe

LETTER = 6.1
"""The width of a letter on an axis, about."""


@dataclass(frozen=True)
class Scale:
    """Maps numbers to places along an axis. Pure."""

    low: float
    high: float
    start: float
    """The place of `low`; may be more than `stop`, as it is on an axis that goes up."""
    stop: float
    log: bool = False

    def place(self, value: float) -> float:
        """The place of a value; one that lies outside is put at the edge."""
        low, high, value = (
            (math.log(one) for one in (self.low, self.high, max(value, self.low))) if self.log else (self.low, self.high, value)
        )
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + (self.stop - self.start) * min(1.0, max(0.0, share))

    def holds(self, value: float) -> bool:
        """Whether a value lies on the axis."""
        return self.low <= value <= self.high

    def ticks(self, most: int = 6) -> list[tuple[float, str]]:
        """Places and texts of ticks at round numbers; both ends where fewer than two lie within."""
        found = _powers(self.low, self.high, most) if self.log else _steps(self.low, self.high, most)
        if len(found) < 2:
            found = [self.low, self.high] if self.high > self.low else [self.low]
        return [(self.place(value), number_text(float(value))) for value in found]


@dataclass(frozen=True)
class Places:
    """Maps choices to places along an axis, each in the middle of its own interval. Pure."""

    choices: Sequence[Any]
    start: float
    stop: float

    @property
    def width(self) -> float:
        """The width of one choice."""
        return (self.stop - self.start) / max(1, len(self.choices))

    def place(self, value: Any) -> float:
        """The middle of a choice's stretch."""
        return self.start + (self.choices.index(value) + 0.5) * self.width

    def ticks(self, most: int = 0) -> list[tuple[float, str]]:  # noqa: ARG002 - as a scale has it
        """Places and texts of ticks, one for each choice."""
        return [(self.place(value), number_text(value)) for value in self.choices]


def _steps(low: float, high: float, most: int) -> list[float]:
    """Returns round numbers at equal distances between the ends, about `most` of them or fewer."""
    if not high > low:
        return []
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(place * step, 12 - math.floor(math.log10(step))) for place in range(first, last + 1)]


def _powers(low: float, high: float, most: int) -> list[float]:
    """Returns round numbers (1, 2, 5 times powers of ten, or fewer) between the ends, for a logarithmic axis; at most `most`."""
    first, last = math.floor(math.log10(low) - 1e-9), math.ceil(math.log10(high) + 1e-9)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [value for power in range(first, last + 1) for factor in factors if low <= (value := factor * 10.0**power) <= high]
        if len(found) <= most:
            return found
    return found[:: -(-len(found) // most)]


def y_axis(scale: Scale, left: float, right: float, name: str, most: int = 6) -> str:
    """Pure: draws a y axis: lines across with their values at the left, and the name above."""
    lines = [
        line(left, y, right, y, "grid") + element("text", safe(text), x=left - 6, y=y + 4, cls="tick end")
        for y, text in scale.ticks(most)
    ]
    top = min(scale.start, scale.stop)
    return "".join(lines) + (label(4, top - 12, name, 70, cls="name") if name else "")


def x_axis(scale: Scale | Places, bottom: float, name: str, most: int = 8) -> str:
    """Pure: draws an x axis: a line with ticks below, and the name below those."""
    left, right = sorted((scale.start, scale.stop))
    fits = int(scale.width / LETTER) if isinstance(scale, Places) else 12
    ticks = [
        line(x, bottom, x, bottom + 4, "axis") + label(x, bottom + 16, text, max(2, fits), cls="tick middle")
        for x, text in scale.ticks(most)
    ]
    named = label((left + right) / 2, bottom + 33, name, int((right - left) / LETTER), cls="name middle") if name else ""
    return line(left, bottom, right, bottom, "axis") + "".join(ticks) + named
