"""Pictures as text: elements of SVG, and scales that put values at places. Nothing is drawn here that a study knows of."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LETTER = 6.1
"""The width of a letter on an axis, about."""


def safe(text: object) -> str:
    """Pure: any text as it may stand in a page or a picture, also in quotes; what cannot be shown is replaced."""
    shown = (letter if letter.isprintable() or letter in "\n\t" else "\N{REPLACEMENT CHARACTER}" for letter in str(text))
    return html.escape("".join(shown))


def shortened(text: object, most: int) -> str:
    """Pure: the end of a text that is too long, as names differ there: model.encoder.width."""
    whole = str(text)
    return whole if len(whole) <= most else "\N{HORIZONTAL ELLIPSIS}" + whole[len(whole) - max(1, most - 1) :]


def number_text(value: Any, digits: int = 4) -> str:
    """Pure: a setting or a result for the eye; whole numbers wholly, others with so many digits."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if 10**digits <= abs(value) < 1e6 else f"{value:.{digits}g}"


def element(name: str, *inside: str, **attributes: object) -> str:
    """Pure: `cls` is the class; an underscore becomes a hyphen; None leaves an attribute out."""
    given = {("class" if key == "cls" else key.replace("_", "-")): value for key, value in attributes.items() if value is not None}
    head = "".join(f' {key}="{_short(value)}"' for key, value in given.items())
    return f"<{name}{head}>{''.join(inside)}</{name}>" if inside else f"<{name}{head}/>"


def _short(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else safe(value)


def label(x: float, y: float, text: object, most: int = 60, **attributes: object) -> str:
    """Pure: a text; where it had to be shortened, all of it on hover."""
    shown = shortened(text, most)
    whole = () if shown == str(text) else (title(text),)
    return element("text", *whole, safe(shown), x=x, y=y, **attributes)


def title(text: object) -> str:
    """Pure: what a browser shows on hover."""
    return element("title", safe(text) or " ")


def line(x1: float, y1: float, x2: float, y2: float, cls: str) -> str:
    """Pure: from one place to another."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, cls=cls)


def picture(width: float, height: float, about: str, *inside: str) -> str:
    """Pure: the whole; as wide as its place allows, and never wider than meant. `about` is for those who do not see it."""
    return element(
        "svg",
        *inside,
        viewBox=f"0 0 {width:g} {height:g}",
        style=f"max-width:{width:g}px;min-width:{0.85 * width:g}px",
        role="img",
        aria_label=about,
    )


@dataclass(frozen=True)
class Scale:
    """Values to places along an axis. Pure."""

    low: float
    high: float
    start: float
    """The place of `low`; may be more than `stop`, as it is on an axis that goes up."""
    stop: float
    log: bool = False

    def place(self, value: float) -> float:
        """What lies outside is put at the edge."""
        low, high, value = (
            (math.log(one) for one in (self.low, self.high, max(value, self.low))) if self.log else (self.low, self.high, value)
        )
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + (self.stop - self.start) * min(1.0, max(0.0, share))

    def holds(self, value: float) -> bool:
        """Whether a value has a place of its own."""
        return self.low <= value <= self.high

    def ticks(self, most: int = 6) -> list[tuple[float, str]]:
        """Places and texts, round numbers that lie within; both ends where there are no two."""
        found = _powers(self.low, self.high, most) if self.log else _steps(self.low, self.high, most)
        if len(found) < 2:
            found = [self.low, self.high] if self.high > self.low else [self.low]
        return [(self.place(value), number_text(float(value))) for value in found]


@dataclass(frozen=True)
class Places:
    """Choices to places along an axis, each in the middle of a stretch of its own. Pure."""

    choices: Sequence[Any]
    start: float
    stop: float

    @property
    def width(self) -> float:
        return (self.stop - self.start) / max(1, len(self.choices))

    def place(self, value: Any) -> float:
        return self.start + (self.choices.index(value) + 0.5) * self.width

    def ticks(self, most: int = 0) -> list[tuple[float, str]]:  # noqa: ARG002 - as a scale has it
        """Each choice."""
        return [(self.place(value), number_text(value)) for value in self.choices]


def _steps(low: float, high: float, most: int) -> list[float]:
    if not high > low:
        return []
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(place * step, 12 - math.floor(math.log10(step))) for place in range(first, last + 1)]


def _powers(low: float, high: float, most: int) -> list[float]:
    first, last = math.floor(math.log10(low) - 1e-9), math.ceil(math.log10(high) + 1e-9)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [value for power in range(first, last + 1) for factor in factors if low <= (value := factor * 10.0**power) <= high]
        if len(found) <= most:
            return found
    return found[:: -(-len(found) // most)]


def y_axis(scale: Scale, left: float, right: float, name: str, most: int = 6) -> str:
    """Pure: lines across with their values at the left, and the name above."""
    lines = [
        line(left, y, right, y, "grid") + element("text", safe(text), x=left - 6, y=y + 4, cls="tick end")
        for y, text in scale.ticks(most)
    ]
    top = min(scale.start, scale.stop)
    return "".join(lines) + (label(4, top - 12, name, 70, cls="name") if name else "")


def x_axis(scale: Scale | Places, bottom: float, name: str, most: int = 8) -> str:
    """Pure: a line with ticks below, and the name below those."""
    left, right = sorted((scale.start, scale.stop))
    fits = int(scale.width / LETTER) if isinstance(scale, Places) else 12
    ticks = [
        line(x, bottom, x, bottom + 4, "axis") + label(x, bottom + 16, text, max(2, fits), cls="tick middle")
        for x, text in scale.ticks(most)
    ]
    named = label((left + right) / 2, bottom + 33, name, int((right - left) / LETTER), cls="name middle") if name else ""
    return line(left, bottom, right, bottom, "axis") + "".join(ticks) + named
