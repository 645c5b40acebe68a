"""The one form of all results pages: the question, its answer, the tables with their bounds, how to read and how to repeat them,
machine and versions, and what was not measured. A benchmark gives its tables and words; all else is alike on every page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bench.bounds import Bound, summary
from bench.figure import Picture, of_estimates
from bench.rounds import Estimate, Samples, ratio

IDLE_SHARE = 0.05
"""Of a core; a contender whose processes use more while they wait is named."""
BUSY_LOAD = 0.5
"""Runnable processes, mean of a minute: above this others use the cores too."""
MOST_PANELS = 3
"""Beside each other in a picture."""
INTERLEAVED = (
    "In each round all rows have their turn, in a shuffled order, and two rows are compared round by round. Ratios and differences "
    "are medians over rounds; in brackets is the 95 % interval of a bootstrap over rounds. A bound is missed when the whole "
    "interval lies beyond it. An A/A row is Unisono against itself: its distance from 1 comes from the machine, not from the code."
)

Result = Mapping[str, Any]
Versions = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Table:
    """Numbers under their names. The first columns hold names; the others are aligned to the right."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    drawn: Mapping[str, Estimate] = field(default_factory=dict)
    """What a picture shows of it, by row."""
    drawn_label: str = ""
    drawn_title: str = ""
    """Otherwise the name of the first column."""
    num_names: int = 1

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, str]], caption: str = "", **drawn: Any) -> Table:
        """Pure: of rows whose cells stand under the names of their columns; what a row lacks is a dash."""
        header = list(dict.fromkeys(name for row in rows for name in row))
        return cls(header, [[row.get(name, "-") for name in header] for row in rows], caption, **drawn)

    def __str__(self) -> str:
        """Markdown whose columns line up in plain text too."""
        widths = [max(len(row[column]) for row in [self.header, *self.rows]) for column in range(len(self.header))]
        adjust = [str.ljust if column < self.num_names else str.rjust for column in range(len(widths))]
        rule = ["-" * (width - 1) + ("-" if to is str.ljust else ":") for to, width in zip(adjust, widths, strict=True)]
        lines = [
            f"| {' | '.join(to(cell, width) for to, cell, width in zip(adjust, row, widths, strict=True))} |"
            for row in [self.header, rule, *self.rows]
        ]
        return joined(self.caption, "\n".join(lines))


def compared(
    title: str,
    samples: Mapping[str, Samples],
    base: str,
    caption: str,
    columns: Mapping[str, Callable[[str], str]] = MappingProxyType({}),
    drawn_title: str = "",
) -> Table:
    """Pure: the median of each contender, how many times as long as that of `base`, and further columns, given a name."""
    label, times = f"times as long as {base}", {name: ratio(one, samples[base]) for name, one in samples.items()}
    rows = [
        [name, f"{one.median:.0f}", "1" if name == base else str(times[name]), *(cell(name) for cell in columns.values())]
        for name, one in samples.items()
    ]
    return Table([title, "us", label, *columns], rows, caption, times, label, drawn_title)


@dataclass(frozen=True, kw_only=True)
class Page:
    """A results page, or a part of one. What is not given is taken from the raw data, or left out where they have none."""

    question: str
    answer: str = ""
    """In a sentence; how many bounds hold is added."""
    result: Result = field(default_factory=dict)
    """The raw data: `command`, `machine`, `sittings`, `quick`, `contenders`, `absent`, `not_measured`, `blocks` or `runs`."""
    measures_time: bool = True
    """Then a busy machine is named."""
    setup: str = ""
    """What was measured, and how, before the tables."""
    tables: Sequence[Table] = ()
    bounds: Sequence[Bound] = ()
    picture: Picture | None = None
    """Otherwise what the tables say is drawn, where they are of numbers."""
    lists: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Further sections: title -> points."""
    reading: Sequence[str] = ()
    versions: Versions | None = None
    not_measured: Sequence[str] | None = None
    parts: Sequence[Page] = ()
    """Each measured by a command of its own."""
    raw: str = ""
    """What the raw data hold, and where in the file."""

    def publish(self, name: str, out: Path) -> str:
        """Local: write NAME.md, and NAME.png where there is a picture; gives answers, tables and bounds as text."""
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{name}.md").write_text(self.text(name) + "\n")
        if picture := self.drawn():
            picture.save(out / f"{name}.png")
        return joined(*(text for part in (self, *self.parts) for text in part._findings())) + "\n"

    def drawn(self) -> Picture | None:
        """Pure: the picture that is given, or one of the tables."""
        drawn = [one for one in self.tables if one.drawn]
        if self.picture or not drawn:
            return self.picture
        panels = [of_estimates(one.drawn_title or one.header[0], one.drawn_label, one.drawn) for one in drawn]
        width = ceil(len(panels) / ceil(len(panels) / MOST_PANELS))
        return Picture(self.question.replace("`", ""), [panels[at : at + width] for at in range(0, len(panels), width)])

    def _findings(self) -> list[str]:
        """Answer, tables and bounds; a quick run answers and judges nothing."""
        is_quick = self.result.get("quick", False)
        answer = "" if is_quick else " ".join(filter(None, [self.answer, summary(self.bounds)]))
        rows = [[one.where, f"{one.found}{one.note}", one.asked, f"**{one.verdict}**"] for one in self.bounds if not is_quick]
        bounds = [str(Table(["bound", "found", "asked", "verdict"], rows, num_names=4))] if rows else []
        return [answer, *map(str, self.tables), *bounds]

    def _warning(self) -> str:
        """What a reader must know before the numbers."""
        if self.result.get("quick"):
            return "**A quick run, to see whether it works. Not a measurement.**"
        loads = [one["load"] for one in self.result.get("sittings", ()) if float(one["load"]) > BUSY_LOAD]
        if not loads or not self.measures_time:
            return ""
        return f"**The machine was busy with other things (load before the start: {', '.join(loads)}). Measure again when quiet.**"

    def text(self, name: str, level: int = 1) -> str:
        mark, result = "#" * level, self.result
        answer, *numbers = self._findings()
        not_measured = result.get("not_measured", ()) if self.not_measured is None else self.not_measured
        lists = {
            **self.lists,
            "Contenders": _about(result.get("contenders", {})),
            "Took no part": _absent(result),
            "How to read it": [*self.reading, *disturbances(_measured(result).values())],
        }
        return joined(
            f"{mark} {self.question}",
            answer,
            self._warning(),
            self.setup,
            f"![{picture.title}]({name}.png)" if level == 1 and (picture := self.drawn()) else "",
            *numbers,
            *(part.text(name, level + 1) for part in self.parts),
            *(_section(f"{mark}# {title}", points) for title, points in lists.items()),
            f"{mark}# How to repeat it\n\n    {result['command']}" if "command" in result else "",
            _section(f"{mark}# Machine and versions", _provenance(result, self.versions)),
            _section(f"{mark}# What was not measured", not_measured),
            f"Raw data: [{name}.json]({name}.json)" + (f": {self.raw}." if self.raw else ".") if level == 1 else "",
        )


def joined(*parts: str) -> str:
    """Pure: parts with an empty line between them; empty parts are left out."""
    return "\n\n".join(filter(None, parts))


def one_line(text: Any) -> str:
    """Pure: a message without its line breaks, for a list."""
    return " ".join(str(text).split())


def disturbances(blocks: Iterable[Mapping[str, Any]]) -> list[str]:
    """Pure: what else used the cores during the measurement, where that was recorded."""
    blocks, shares = list(blocks), dict[str, float]()
    stolen_s = [block["stolen_cpu_s"] for block in blocks if "stolen_cpu_s" in block]
    for block in blocks:
        for name, share in block.get("idle_share_of_a_core", {}).items():
            shares[name] = max(share, shares.get(name, 0.0))
    lines = []
    if stolen_s:
        lines.append(f"CPU time that the host of a virtual machine took away during the measurement: {sum(stolen_s):.1f} s.")
    if shares:
        most = max(shares.values())
        lines.append(f"Share of a core that a contender's processes used while they waited for their turn: at most {most:.3f}.")
    busy = {name: share for name, share in shares.items() if share > IDLE_SHARE}
    return [*lines, *(f"{name} used {share:.0%} of a core while it waited, which slowed down all." for name, share in busy.items())]


def _section(title: str, points: Sequence[str]) -> str:
    return "\n".join([title, "", *(f"- {point}" for point in points)]) if points else ""


def _measured(result: Result) -> dict[str, Any]:
    """Blocks or runs by key."""
    found = result.get("blocks", result.get("runs", {}))
    return dict(found) if isinstance(found, Mapping) else {str(number): one for number, one in enumerate(found)}


def _about(contenders: Mapping[str, Any], where: str = "") -> list[str]:
    """Contenders, or those of each part."""
    points: list[str] = []
    for name, one in contenders.items():
        if isinstance(one, str) or "about" in one:
            points.append(f"`{name}`{where}: {one if isinstance(one, str) else one['about']}")
        else:
            points += _about(one, f" ({name})")
    return points


def _absent(result: Result) -> list[str]:
    """Who took no part, or from some block on no more, and why."""
    found = {(name, why): f"`{name}`" for name, why in result.get("absent", {}).items()}
    for key, block in _measured(result).items():
        for name, why in block.get("failed", {}).items():
            found.setdefault((name, why), f"`{name}` at `{key}`")
    return [f"{who}: {why}" for (_, why), who in found.items()]


def _provenance(result: Result, versions: Versions | None) -> list[str]:
    """Machine, times and versions."""
    if versions is None:
        found = [one["versions"] for one in _measured(result).values() if "versions" in one]
        by_contender = {name: of_name for block in found for name, of_name in block.items()}
        versions = by_contender if "blocks" in result else {"trainings": found[0]} if found else {}
    sittings, lines = result.get("sittings", ()), [f"{name}: {value}" for name, value in result.get("machine", {}).items()]
    for number, one in enumerate(sittings, 1):
        title = "measured" if len(sittings) == 1 else f"sitting {number}"
        lines.append(f"{title}: {one['at']}, commit {one['commit']}, load before {one['load']}")
    return lines + [
        f"{name}: {', '.join(f'{key} {value}' for key, value in of_name.items())}" for name, of_name in versions.items()
    ]
