"""Whether this process speaks to a terminal, and how wide it is; also of a rank whose launcher passes its words on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

VARIABLE = "UNISONO_TERMINAL"
"""Says to a rank that its launcher passes its standard output to a terminal as it is: 'columns:launcher'. The process number of
the launcher keeps away the children of the rank, whose output may go elsewhere."""


@dataclass(frozen=True)
class Terminal:
    """How standard output is read: by lines, or by somebody who sees them being drawn."""

    columns: int | None
    """None: no terminal; what is printed should be plain lines."""
    colour: bool = False


def terminal() -> Terminal:
    """Local: of the standard output of this process."""
    return terminal_of(os.environ, columns_of(1), os.getppid())


def terminal_of(env: Mapping[str, str], own_columns: int | None, parent: int) -> Terminal:
    """Pure. A terminal that cannot move its cursor counts as none."""
    if env.get("TERM") == "dumb":
        return Terminal(None)
    columns, _, launcher = env.get(VARIABLE, "").partition(":")
    passed_on = int(columns) if columns.isdigit() and launcher == str(parent) else None
    found = own_columns or passed_on
    return Terminal(found, colour=found is not None and not env.get("NO_COLOR"))


def columns_of(fd: int) -> int | None:
    """Local: the width of the terminal behind `fd`; None if there is none, or none with a width: Open MPI gives every process
    such a one, whatever its own output is."""
    try:
        return os.get_terminal_size(fd).columns or None if os.isatty(fd) else None
    except OSError:
        return None
