"""A bar on a terminal, nothing elsewhere."""

from __future__ import annotations

from io import StringIO

from unisono.observe.bar import BEGIN_OF_LINE, ERASE_TO_END, Bar
from unisono.predict.piece_progress import PieceProgress


def test_a_terminal_sees_a_bar_that_fits_and_is_removed() -> None:
    now = iter((0.0, 1.0, 1.05, 2.0))
    stream = StringIO()
    bar = Bar(stream, 60)
    progress = PieceProgress(bar, "out.csv", 2, lambda: next(now))
    for done in (10, 50, 60, 100):
        progress(done, 100)
    bar.close()
    drawn = stream.getvalue().split(BEGIN_OF_LINE)[1:]
    assert len(drawn) == 4, "one of the four came too soon; the last removes the bar"
    assert drawn[1] == f"out.csv {'━' * 7}╸{' ' * 7}  50% · 100 samples/s · 1.0 s left{ERASE_TO_END}"
    assert all(len(line.removesuffix(ERASE_TO_END)) < 60 for line in drawn)
    assert drawn[-1] == ERASE_TO_END


def test_a_file_sees_nothing() -> None:
    stream = StringIO()
    bar = Bar(stream, None)
    PieceProgress(bar, "out.csv", 1)(1, 2)
    bar.close()
    assert stream.getvalue() == ""
