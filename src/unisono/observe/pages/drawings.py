"""Drawings for all reports: a line through points, bars of shares. Pure; they return SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unisono.observe.pages.svg import element, label, line, picture, title


def path_through(xs: Sequence[float], ys: Sequence[float | None]) -> str:
    """Pure: the `d` of a line through all places, broken where there is none; a place without neighbours is a short stroke."""
    path, is_open = "", False
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if y is None:
            is_open = False
            continue
        alone = not is_open and (i + 1 == len(ys) or ys[i + 1] is None)
        path += f"M{x - 6:.1f} {y:.1f}h12" if alone else f"{'L' if is_open else 'M'}{x:.1f} {y:.1f}"
        is_open = True
    return path


def bars(shares: Mapping[str, float | None], about: str, unknown: str) -> str:
    """Pure: draws a bar for each share, the largest first; names without a share come last, with the text `unknown`."""
    known = sorted(((share, name) for name, share in shares.items() if share is not None), key=lambda one: (-one[0], one[1]))
    rows: list[tuple[float | None, str]] = [*known, *((None, name) for name, share in shares.items() if share is None)]
    left, right, height = 230, 640, 26
    drawn = [line(left, 4, left, 8 + height * len(rows), "axis")]
    for place, (share, name) in enumerate(rows):
        y = 8 + place * height
        drawn.append(label(left - 8, y + 14, name, 34, cls="tick end"))
        if share is None:
            drawn.append(label(left + 8, y + 14, unknown, cls="tick pale"))
        else:
            length = max(1.0, share * (right - left))
            bar = element("rect", title(f"{name}: {share:.1%}"), x=left, y=y + 2, width=length, height=height - 8, cls="bar")
            drawn += [bar, element("text", f"{share:.0%}", x=left + length + 6, y=y + 14, cls="tick")]
    said = ", ".join(f"{name} {share:.0%}" for share, name in known)
    return picture(right + 60, 12 + height * len(rows), f"{about}: {said or 'nothing'}", *drawn)
