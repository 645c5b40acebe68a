"""Elements of SVG as text, with titles that a browser shows on hover. Pure."""

from __future__ import annotations

import html
from typing import Any


def safe(text: object) -> str:
    """Pure: escapes any text for a page or a picture, also in quotes; characters that cannot be shown are replaced."""
    shown = (letter if letter.isprintable() or letter in "\n\t" else "\N{REPLACEMENT CHARACTER}" for letter in str(text))
    return html.escape("".join(shown))


def shorten(text: object, most: int) -> str:
    """Pure: shortens a text to its end, where names such as model.encoder.width differ."""
    whole = str(text)
    return whole if len(whole) <= most else "\N{HORIZONTAL ELLIPSIS}" + whole[len(whole) - max(1, most - 1) :]


def number_text(value: Any, digits: int = 4) -> str:
    """Pure: formats a setting or a result: a float with `digits` significant digits, or as a whole number from 10**digits to 1e6;
    all else as `str` shows it."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if 10**digits <= abs(value) < 1e6 else f"{value:.{digits}g}"


def element(name: str, *inside: str, **attributes: object) -> str:
    """Pure: an element with attributes: `cls` is the class; an underscore becomes a hyphen; None leaves an attribute out."""
    given = {("class" if key == "cls" else key.replace("_", "-")): value for key, value in attributes.items() if value is not None}
    head = "".join(f' {key}="{_short(value)}"' for key, value in given.items())
    return f"<{name}{head}>{''.join(inside)}</{name}>" if inside else f"<{name}{head}/>"


def _short(value: object) -> str:
    """Returns an attribute's value as text, a float with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else safe(value)


def label(x: float, y: float, text: object, most: int = 60, **attributes: object) -> str:
    """Pure: a text element; a text that had to be shortened is shown in full on hover."""
    shown = shorten(text, most)
    whole = () if shown == str(text) else (title(text),)
    return element("text", *whole, safe(shown), x=x, y=y, **attributes)


def title(text: object) -> str:
    """Pure: a title element, which a browser shows on hover."""
    return element("title", safe(text) or " ")


def line(x1: float, y1: float, x2: float, y2: float, cls: str) -> str:
    """Pure: a line element from one place to another."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, cls=cls)


def picture(width: float, height: float, about: str, *inside: str) -> str:
    """Pure: the svg element around a picture, as wide as the page allows, up to `width`. `about` describes it for screen
    readers."""
    return element(
        "svg",
        *inside,
        viewBox=f"0 0 {width:g} {height:g}",
        style=f"max-width:{width:g}px;min-width:{0.85 * width:g}px",
        role="img",
        aria_label=about,
    )
