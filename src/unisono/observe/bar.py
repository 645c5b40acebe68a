"""The progress bar of all verbs: one line at the bottom of a terminal, drawn by rich; nothing elsewhere.

Rich draws the bar and measures the words. It is loaded at the first drawing, so a run without a terminal never pays for it. The
line is put there by a carriage return, not by rich's `Live`: that hides the cursor, which a killed process leaves hidden, and ends
with line feeds, between which a launcher may write lines of other ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

DRAW_EVERY_S = 0.1
SHORTEST, LONGEST, UNIT = 5, 40, 5
"""Cells of the bar: a multiple of the unit, so that it does not tremble with the words."""
BEGIN_OF_LINE, ERASE_TO_END = "\r", "\x1b[K"
NO_WORDS: Mapping[str, str] = MappingProxyType({})


class Bar:
    """A progress bar on the last line of the terminal; all other lines must go through `say`. Local."""

    def __init__(self, stream: TextIO, columns: int | None, colour: bool = False, every_s: float = DRAW_EVERY_S) -> None:
        """`columns`: width of the terminal that shows `stream`; None where there is none, so that nothing is drawn. `colour`: may
        be used there."""
        self.is_shown = columns is not None
        self._stream, self._columns, self._colour = stream, columns or 0, colour
        self._every_s = every_s
        self._next_s = float("-inf")
        self._is_drawn = False

    def is_due(self, now: float) -> bool:
        """Whether enough time has passed since this was last true. The clock is the caller's."""
        if now < self._next_s:
            return False
        self._next_s = now + self._every_s
        return True

    def draw_soon(self) -> None:
        """Makes the next drawing due at once."""
        self._next_s = float("-inf")

    def draw(self, head: str, share: float | None, words: Mapping[str, str] = NO_WORDS, spare: Sequence[str] = ()) -> None:
        """Draws the head, a bar of which `share` is done (None: no bar), and the words. The bar takes what the words leave. Where
        that is too little, the words named in `spare` go, in that order."""
        if not self.is_shown:
            return
        room = self._columns - 1  # some terminals begin a new line as soon as the last column is written
        self._stream.write(f"{BEGIN_OF_LINE}{self._fit_words(room, head, share, words, spare)}{ERASE_TO_END}")
        self._stream.flush()
        self._is_drawn = True

    def say(self, text: str) -> None:
        """Prints a line that stays, in the place of the bar."""
        erase = f"{BEGIN_OF_LINE}{ERASE_TO_END}" if self._is_drawn else ""
        self._stream.write(f"{erase}{text}\n")
        self._stream.flush()
        self._is_drawn = False

    def close(self) -> None:
        """Removes the bar and leaves the cursor at the beginning of an empty line. Idempotent."""
        if self._is_drawn:
            self._stream.write(f"{BEGIN_OF_LINE}{ERASE_TO_END}")
            self._is_drawn = False
        self._stream.flush()

    def _fit_words(self, room: int, head: str, share: float | None, words: Mapping[str, str], spare: Sequence[str]) -> str:
        """Returns the line, shortened to `room` cells: first words in `spare` go, then the bar, then the end."""
        from rich.cells import cell_len, set_cell_size

        dot = "  " if self._console.options.ascii_only else " · "
        for num_gone in range(len(spare) + 1):
            tail = dot.join(word for name, word in words.items() if name not in spare[:num_gone])
            left = room - cell_len(head) - (cell_len(tail) + 1 if tail else 0) - 1
            if left >= (0 if share is None else SHORTEST):
                break
        cells = min(LONGEST, left) // UNIT * UNIT
        if share is not None and cells >= SHORTEST:
            return " ".join((head, self._bar(share, cells), tail)).strip()
        text = f"{head}{dot}{tail}" if tail else head
        return text if cell_len(text) <= room else set_cell_size(text, room)

    def _bar(self, share: float, cells: int) -> str:
        """Returns the drawing of a bar of so many cells, `share` of which is done."""
        from rich.progress_bar import ProgressBar

        bar: Any = ProgressBar(1.0, share, cells, style="bright_black", complete_style="green", finished_style="green")
        with self._console.capture() as captured:
            self._console.print(bar, end="")
        return captured.get().ljust(cells)  # without colour rich leaves out what is not done yet

    @cached_property
    def _console(self) -> Console:
        """The console of rich by which the bar is drawn."""
        from rich.console import Console

        return Console(
            file=self._stream,
            force_terminal=True,
            force_jupyter=False,
            color_system="standard" if self._colour else None,
            no_color=not self._colour,
            width=max(1, self._columns),
            height=1,
            legacy_windows=False,
        )
