"""SLURM's compressed lists: hosts such as `nid0[1111-1113,2222],gpu[01-08]` and tasks per node such as `2(x3),1`. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import product

from unisono.errors import UsageError

MAX_HOSTS = 65536
"""SLURM's own limit for one range; more is a typing mistake that would eat the memory."""

_ITEM = re.compile(r"(?:[^\[\],\s]|\[[^\[\]\s]*\])+")
_TASKS = re.compile(r"(\d{1,9})(?:\(x(\d{1,9})\))?", re.ASCII)
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?", re.ASCII)


def hosts(text: str, source: str = "host list") -> list[str]:
    """Returns the hosts in the order in which `scontrol show hostnames` prints them; `source` names the variable in messages."""
    names: list[str] = []
    position = 0
    while True:
        item = _ITEM.match(text, position)
        if item is None:
            raise _malformed_list(text, source, f"no host name at character {position + 1}")
        names.extend(_expand_item(item.group(), text, source))
        position = item.end()
        if position == len(text):
            return names
        if text[position] != ",":
            raise _malformed_list(text, source, f"unexpected {text[position]!r} at character {position + 1}")
        position += 1


def tasks(text: str, source: str = "tasks per node") -> list[int]:
    """Returns the number of tasks on each node, in the order of the nodes."""
    counts: list[int] = []
    for item in text.split(","):
        match = _TASKS.fullmatch(item)
        if match is None or int(match.group(2) or 1) > MAX_HOSTS:
            raise UsageError(
                f"{source} must look like 2(x3),1 (two tasks on each of three nodes, one on a fourth); "
                f"received {text!r} (environment); correct it or start again with srun"
            )
        counts.extend([int(match.group(1))] * int(match.group(2) or 1))
    return counts


def _expand_item(item: str, text: str, source: str) -> Iterator[str]:
    """Yields the hosts of one item of the list, such as node[01-08], in SLURM's order; `text` is the whole list, for messages."""
    constants = re.split(r"\[.*?\]", item)
    groups = [_numbers(group, text, source) for group in re.findall(r"\[(.*?)\]", item)]
    if math.prod(map(len, groups)) > MAX_HOSTS:
        raise _malformed_list(text, source, f"{item} stands for more than {MAX_HOSTS} hosts")
    # SLURM lets the last bracket run fastest, then the first, the second and so on.
    for choice in product(*reversed(groups[:-1]), *groups[-1:]):
        numbers = (*reversed(choice[:-1]), *choice[-1:])
        yield constants[0] + "".join(number + constant for number, constant in zip(numbers, constants[1:], strict=True))


def _numbers(group: str, text: str, source: str) -> list[str]:
    """Returns the numbers of `01-03,7`, here 01 02 03 7: the first number of a range gives the width."""
    numbers: list[str] = []
    for part in group.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise _malformed_list(text, source, f"[{group}] holds {part!r}, which is neither a number nor a range")
        first, last = match.group(1), match.group(2) or match.group(1)
        count = int(last) - int(first) + 1
        if not 1 <= count <= MAX_HOSTS:
            raise _malformed_list(text, source, f"the range {part} in brackets has {count} members")
        numbers.extend(str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
    return numbers


def _malformed_list(text: str, place: str, why: str) -> UsageError:
    """Returns the error for a list of hosts that cannot be read."""
    return UsageError(
        f"{place} is not a list of hosts such as node[01-08],gpu3: {why}; received {text!r} (environment); "
        "correct it or start again with srun"
    )
