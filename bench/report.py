"""The parts that every result has in common: how it came about, on which machine, with which versions, and what it is not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

IDLE_SHARE = 0.05
"""Of a core; a contender whose processes use more while they wait is named."""
BUSY_LOAD = 0.5
"""Runnable processes, mean of a minute: above this others use the cores too."""


def provenance(
    command: str, machine: Mapping[str, str], sittings: Sequence[Mapping[str, str]], versions: Mapping[str, Mapping[str, str]]
) -> str:
    """Local: the section that says how to get the numbers again."""
    lines = ["## How it was measured", "", f"    {command}", ""]
    lines += [f"- {name}: {value}" for name, value in machine.items()]
    for number, sitting in enumerate(sittings, 1):
        title = "measured" if len(sittings) == 1 else f"sitting {number}"
        lines.append(f"- {title}: {sitting['at']}, commit {sitting['commit']}, load before {sitting['load']}")
    lines += [f"- {name}: {', '.join(f'{key} {value}' for key, value in found.items())}" for name, found in versions.items()]
    return "\n".join(lines)


def warnings(result: Mapping[str, Any]) -> str:
    """Local: what a reader must know before the numbers."""
    if result["quick"]:
        return "**A quick run, to see whether it works. Not a measurement.**"
    loads = [sitting["load"] for sitting in result["sittings"] if float(sitting["load"]) > BUSY_LOAD]
    if loads:
        return f"**The machine was busy with other things (load before the start: {', '.join(loads)}). Measure again when quiet.**"
    return ""


def disturbances(blocks: Iterable[Mapping[str, Any]]) -> list[str]:
    """Local: what else used the cores during the measurement."""
    blocks = list(blocks)
    stolen_s = sum(block["stolen_cpu_s"] for block in blocks)
    shares: dict[str, float] = {}
    for block in blocks:
        for name, share in block["idle_share_of_a_core"].items():
            shares[name] = max(share, shares.get(name, 0.0))
    busy = {name: share for name, share in shares.items() if share > IDLE_SHARE}
    return [
        f"CPU time that the host of a virtual machine took away during the measurement: {stolen_s:.1f} s.",
        f"Share of a core that a contender's processes used while they waited for their turn: at most {max(shares.values()):.3f}.",
        *(f"{name} used {share:.0%} of a core while it waited, which slowed down everybody." for name, share in busy.items()),
    ]


def section(title: str, points: Sequence[str]) -> str:
    """Local: a list under a title; nothing if there are no points."""
    return "\n".join([f"## {title}", "", *(f"- {point}" for point in points)]) if points else ""


def page(*parts: str) -> str:
    """Local: parts with an empty line between them; empty parts are left out."""
    return "\n\n".join(part for part in parts if part) + "\n"


def one_line(text: Any) -> str:
    """Local: a message without its line breaks, for a list."""
    return " ".join(str(text).split())
