"""The one bar: what fits is shown, nothing is loaded without a terminal, and no line of it stays behind."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
from rich.cells import cell_len

from unisono.observe.bar import BEGIN_OF_LINE, ERASE_TO_END, Bar

WORDS = {"step": "step 3/10", "loss": "loss 0.5000", "left": "1:02 left"}


def drawn(columns: int, head: str = "epoch 1/3", share: float | None = 0.5, spare: tuple[str, ...] = ()) -> str:
    stream = io.StringIO()
    Bar(stream, columns).draw(head, share, WORDS, spare)
    text = stream.getvalue()
    assert text.startswith(BEGIN_OF_LINE) and text.endswith(ERASE_TO_END)
    return text.removeprefix(BEGIN_OF_LINE).removesuffix(ERASE_TO_END)


def test_the_bar_takes_what_the_words_leave() -> None:
    assert drawn(100) == f"epoch 1/3 {'━' * 20}{' ' * 20} step 3/10 · loss 0.5000 · 1:02 left"
    assert drawn(56) == "epoch 1/3 ━━╸   step 3/10 · loss 0.5000 · 1:02 left"


def test_spare_words_go_first_and_in_order() -> None:
    spare = ("step", "left")
    assert drawn(52, spare=spare) == "epoch 1/3 ━━╸   step 3/10 · loss 0.5000 · 1:02 left"
    assert drawn(51, spare=spare) == "epoch 1/3 ━━━━━━━╸        loss 0.5000 · 1:02 left"
    assert drawn(39, spare=spare) == "epoch 1/3 ━━━━━━━╸        loss 0.5000"
    assert drawn(27, spare=spare) == "epoch 1/3 · loss 0.5000"


def test_wide_letters_count_twice_and_what_does_not_fit_is_cut() -> None:
    for columns in range(1, 60):
        text = drawn(columns, head="数字.csv", spare=("left",))
        assert cell_len(text) <= columns - 1, (columns, text)


def test_without_a_share_there_is_no_bar() -> None:
    assert drawn(100, "loading", None) == "loading · step 3/10 · loss 0.5000 · 1:02 left"


@pytest.mark.parametrize(("share", "cells"), [(-1.0, 0), (0.0, 0), (1.0, 40), (7.0, 40)])
def test_a_share_beyond_its_ends_is_at_the_end(share: float, cells: int) -> None:
    assert drawn(100, share=share).count("━") == cells


def test_colour_marks_what_is_done_and_what_is_not() -> None:
    stream = io.StringIO()
    Bar(stream, 80, colour=True).draw("x", 0.5, {})
    assert stream.getvalue() == f"\rx \x1b[32m{'━' * 20}\x1b[0m\x1b[90m╺\x1b[0m\x1b[90m{'━' * 19}\x1b[0m\x1b[K"


def test_a_line_takes_its_place_and_closing_wipes_it() -> None:
    stream = io.StringIO()
    bar = Bar(stream, 80)
    bar.say("before")
    bar.draw("x", None)
    bar.say("between")
    bar.draw("y", None)
    bar.close()
    bar.close()
    assert stream.getvalue() == "before\n\rx\x1b[K\r\x1b[Kbetween\n\ry\x1b[K\r\x1b[K"


def test_it_is_due_now_and_then() -> None:
    bar = Bar(io.StringIO(), 80, every_s=1.0)
    assert [bar.is_due(now) for now in (0.0, 0.9, 1.0, 1.5)] == [True, False, True, False]
    bar.draw_soon()
    assert bar.is_due(1.6) and not bar.is_due(1.7)


PROGRAM = """
import sys
from unisono.observe.bar import Bar
for columns in (None, 80):
    bar = Bar(sys.stdout, columns)
    bar.draw("head", 0.5)
    bar.close()
    print("rich" in sys.modules)
"""


def test_rich_is_loaded_by_the_first_drawing_on_a_terminal() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    without, _, bar, loaded = done.stdout.replace("\r", "\n").splitlines()
    assert without == "False" and bar.startswith("head ━") and loaded.endswith("True")
