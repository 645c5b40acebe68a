"""The Gantt chart of a study: which trials each of its blocks ran when. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from unisono.observe.pages.svg import element, label, line, picture, safe, title
from unisono.tuning.report.spending import Block, Span, stretches_of

LEFT, RIGHT, TOP = 150, 930, 10
SHORTEST_CUT = 0.05
"""A time in which no job was there is cut out where it is more than this share of the time in which one was."""
CUT_WIDTH = 26.0
MOST_CUT = 0.3
"""Of the width, for all cuts together."""
STEPS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 43200, 86400)
MANY = 40
"""Rows from which on they are drawn thin."""


def duration(seconds: float) -> str:
    """Returns a duration in words: 1.2 s, 3 min 20 s, 2 h 05 min, 3 d 4 h. Pure."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 9.95 and seconds % 1 else f"{seconds:.0f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60:02d} s" if whole % 60 else "")
    if whole < 86400:
        return f"{whole // 3600} h" + (f" {whole % 3600 // 60:02d} min" if whole % 3600 // 60 else "")
    return f"{whole // 86400} d" + (f" {whole % 86400 // 3600} h" if whole % 86400 // 3600 else "")


class _Time:
    """Maps times to places on the axis; long stretches without any job get a fixed small width."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        merged = stretches_of(blocks)
        self.stretches = stretches_of(blocks, SHORTEST_CUT * sum(end - begin for begin, end in merged))
        self.active_s = sum(end - begin for begin, end in self.stretches)
        num_cuts = len(self.stretches) - 1
        self.cut = min(CUT_WIDTH, MOST_CUT * (RIGHT - LEFT) / max(1, num_cuts))
        self._per_s = (RIGHT - LEFT - self.cut * num_cuts) / (self.active_s or 1.0)

    def place(self, at_s: float) -> float:
        """Returns the x of a time; a time without any job is at the begin of the next stretch."""
        x = float(LEFT)
        for begin, end in self.stretches:
            if at_s <= end:
                return x + max(0.0, at_s - begin) * self._per_s
            x += (end - begin) * self._per_s + self.cut
        return float(RIGHT)

    def ticks(self) -> list[tuple[float, str]]:
        """Round times since the beginning of the first block, each with its place."""
        first = self.stretches[0][0]
        step = next((one for one in STEPS_S if self.active_s / one <= 8), -(-self.active_s // (8 * 86400)) * 86400)
        found = list[tuple[float, str]]()
        for begin, end in self.stretches:
            at_s = math.ceil((begin - first) / step) * step
            while first + at_s <= end:
                found.append((self.place(first + at_s), duration(at_s)))
                at_s += step
        return found


def gantt(blocks: Sequence[Block]) -> str:
    """Draws a row for each block with its attempts, coloured by how they ended, and the share of its time that it was busy.
    Pure."""
    height = 24 if len(blocks) <= MANY else 11
    small = "" if len(blocks) <= MANY else " small"
    time, bottom = _Time(blocks), TOP + height * len(blocks)
    drawn = list[str]()
    for (_, end), (begin, _) in pairwise(time.stretches):
        about = f"no job was running for {duration(begin - end)}"
        drawn.append(element("rect", title(about), x=time.place(end), y=TOP, width=time.cut, height=bottom - TOP, cls="cut"))
    last = -1e9
    for x, text in time.ticks():
        drawn.append(line(x, TOP, x, bottom + 4, "grid"))
        if x - last > 62:  # where a cut is short, two texts would meet
            drawn.append(label(x, bottom + 17, text, cls="tick middle"))
            last = x
    for place, block in enumerate(blocks):
        y = TOP + place * height
        drawn.append(label(LEFT - 8, y + height * 0.5 + 4, block.block_id, 22, cls=f"tick end{small}"))
        x, end = time.place(block.began_s), time.place(block.ended_s)
        drawn.append(element("rect", x=x, y=y + height * 0.5 - 1, width=max(0.5, end - x), height=2, cls="there"))
        drawn.extend(_bar(span, time, y, height) for span in block.spans)
        drawn.append(element("text", f"{block.busy_share:.0%}", x=RIGHT + 44, y=y + height * 0.5 + 4, cls=f"tick end{small}"))
    pattern = element(
        "pattern",
        element("rect", width=6, height=6, cls="hatch-ground"),
        element("path", d="M0 0V6", cls="hatch-line"),
        id="hatch",
        width=6,
        height=6,
        patternUnits="userSpaceOnUse",
        patternTransform="rotate(45)",
    )
    about = (
        f"{len(blocks)} blocks over time; busy: {', '.join(f'{block.block_id} {block.busy_share:.0%}' for block in blocks[:MANY])}"
    )
    named = label((LEFT + RIGHT) / 2, bottom + 34, "time since the first job began", cls="name middle")
    busy = label(RIGHT + 44, bottom + 17, "busy", cls="name end")
    return picture(RIGHT + 60, bottom + 42, about, element("defs", pattern), *drawn, named, busy)


def _bar(span: Span, time: _Time, y: float, height: float) -> str:
    """Draws one attempt, with its trial number where there is room, and its facts on hover."""
    began_s = span.began_s or 0.0
    x, end = time.place(began_s), time.place(began_s + span.took_s)
    about = f"trial {span.trial}{f', attempt {span.attempt}' if span.attempt else ''}: {span.end} after {duration(span.took_s)}"
    width = max(1.5, end - x - 0.5)
    cls = f"span {span.end.replace(' ', '-')}"
    bar = element(
        "rect", title(about), x=x, y=y + height * 0.14, width=width, height=height * 0.72, rx=2, cls=cls, data_t=span.trial
    )
    if height < 20 or width < 8 + 7 * len(str(span.trial)):
        return bar
    return bar + element("text", safe(span.trial), x=x + width / 2, y=y + height * 0.5 + 4, cls="inner middle")
