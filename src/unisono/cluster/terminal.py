"""Whether output of this process goes to a terminal, and its width; also of a rank whose launcher forwards its output."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

VARIABLE = "UNISONO_TERMINAL"
"""Variable that tells a rank that its launcher passes its standard output unchanged to a terminal: 'columns:launcher'. The
process number of the launcher keeps away the children of the rank, whose output may go elsewhere."""


@dataclass(frozen=True)
class Terminal:
    """The kind of an output: plain lines, or a terminal on which lines can be redrawn."""

    columns: int | None
    """Width; None: no terminal, so output should be plain lines."""
    colour: bool = False


def terminal(fd: int = 1) -> Terminal:
    """Local: returns the kind of the standard output of this process (1), or of its standard error (2), which launchers pass on
    by lines."""
    return terminal_of(os.environ, columns_of(fd), os.getppid() if fd == 1 else 0)


def terminal_of(env: Mapping[str, str], own_columns: int | None, parent: int) -> Terminal:
    """Pure: returns the kind of an output by the environment. A terminal that cannot move its cursor counts as none."""
    if env.get("TERM") == "dumb":
        return Terminal(None)
    columns, _, launcher = env.get(VARIABLE, "").partition(":")
    passed_on = int(columns) if columns.isdigit() and launcher == str(parent) else None
    found = own_columns or passed_on
    return Terminal(found, colour=found is not None and not env.get("NO_COLOR"))


def columns_of(fd: int) -> int | None:
    """Local: returns the width of the terminal behind `fd`; None if there is none, or none with a width: Open MPI gives every
    process such a one, whatever its own output is."""
    try:
        return os.get_terminal_size(fd).columns or None if os.isatty(fd) else None
    except OSError:
        return None
