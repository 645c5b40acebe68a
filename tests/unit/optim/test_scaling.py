"""The learning rate that follows the batch."""

from __future__ import annotations

import pytest

from unisono.errors import UsageError
from unisono.optim.scaling import growth_note, linear, scaled_lr, square_root


def test_rules() -> None:
    assert linear(0.1, 256, 64) == pytest.approx(0.4)
    assert square_root(0.1, 256, 64) == pytest.approx(0.2)
    assert scaled_lr("none", 0.1, 256, 64) == 0.1
    assert scaled_lr("sqrt", 0.1, 256, 64) == square_root(0.1, 256, 64)


def test_mistakes_are_named() -> None:
    with pytest.raises(UsageError, match="did you mean 'linear'"):
        scaled_lr("liner", 0.1, 2, 1)
    with pytest.raises(UsageError, match="at least one sample"):
        linear(0.1, 0, 64)


def test_the_note_says_what_a_growing_batch_does() -> None:
    note = growth_note(64, 4, 1000, 0.1)
    assert "256 samples instead of 64" in note
    assert "4 steps instead of 16" in note
    assert "stays 0.1" in note
    assert "is 0.4 instead of 0.1 (linear)" in growth_note(64, 4, 1000, 0.1, "linear")
    assert "the same as --global-batch 64" in growth_note(64, 1, 1000, 0.1)
