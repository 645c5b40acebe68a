"""Pictures of curves: they open, show what they should, and need no display."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from unisono.errors import CannotWrite
from unisono.observe.plots import _panels, draw_curves


def rows(num_epochs: int, best: int | None = None) -> list[dict[str, Any]]:
    return [
        {
            "epoch": e,
            "step": 10 * (e + 1),
            "metrics": {
                "loss": math.exp(-e / num_epochs * 5),
                "accuracy": 1 - math.exp(-e),
                "val_loss": 0.1 + math.exp(-e),
                "val_accuracy": 0.9,
            },
            "is_best": e == best,
        }
        for e in range(num_epochs)
    ]


def pixels(path: Path, colour: tuple[int, int, int]) -> int:
    with Image.open(path) as image:
        image.load()
        assert image.format == "PNG"
        counts = image.convert("RGB").getcolors(1 << 24)
    assert counts is not None
    return sum(count for count, found in counts if found == colour)


BLUE, ORANGE, PURPLE = (0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00), (0xCC, 0x79, 0xA7)


@pytest.mark.parametrize("num_epochs", [1, 2, 30, 1000])
def test_a_picture_of_any_length(num_epochs: int, tmp_path: Path) -> None:
    path = tmp_path / "curves.png"
    steps = [{"step": n, "loss": 1 / (n + 1)} for n in range(10 * num_epochs)]
    draw_curves(rows(num_epochs, best=num_epochs // 2), path, "digits, 2 workers", steps, ("val_accuracy", 0.95))
    assert pixels(path, BLUE) > 50, "training"
    assert pixels(path, ORANGE) > 50, "validation"
    assert pixels(path, PURPLE) > 50, "target"


def test_no_display_and_no_state_are_needed(tmp_path: Path) -> None:
    before = "matplotlib.pyplot" in sys.modules  # of another test
    draw_curves(rows(3), tmp_path / "a.png", "a")
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_the_target_is_drawn_only_where_its_metric_is(tmp_path: Path) -> None:
    draw_curves(rows(3), tmp_path / "a.png", "a", target=("val_f1", 0.95))
    assert pixels(tmp_path / "a.png", PURPLE) == 0


def test_gaps_and_strange_names(tmp_path: Path) -> None:
    path = tmp_path / "curves.png"
    strange = rows(5, best=4)
    strange[1]["metrics"]["loss"] = None
    strange[2]["metrics"]["loss"] = float("inf")
    strange[4]["metrics"]["val_accuracy"] = None
    strange[3]["metrics"]["late_$x_{metric"] = 3.0
    draw_curves(strange, path, "a $title_{ that is no formula", [{"step": 0, "loss": None}, {"step": 9, "loss": 2.0}])
    assert pixels(path, BLUE) > 50
    nothing = [{"epoch": 0, "step": 1, "metrics": {"loss": None}, "is_best": True}]
    draw_curves(nothing, path, "a run that failed at once")
    assert pixels(path, (255, 255, 255)) > 1000


def test_each_metric_has_one_panel_and_the_loss_is_first() -> None:
    metrics = {"accuracy": 1.0, "val_accuracy": 1.0, "val_loss": 1.0, "test_loss": 1.0, "loss": 1.0}
    assert _panels([{"metrics": metrics}, {"metrics": {"f1": 1.0}}]) == {
        "loss": ["loss", "val_loss", "test_loss"],
        "accuracy": ["accuracy", "val_accuracy"],
        "f1": ["f1"],
    }
    assert list(_panels([{"metrics": {"val_auc": 1.0}}])) == ["auc"]


def test_a_plot_that_cannot_be_drawn_is_reported(tmp_path: Path) -> None:
    assert not draw_curves([], tmp_path / "curves.png", "a")
    assert not draw_curves([{"epoch": 0, "step": 1, "metrics": {}}], tmp_path / "curves.png", "a")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(CannotWrite, match=r"cannot write .*curves\.png: No such file or directory; give another place"):
        draw_curves(rows(2), tmp_path / "missing" / "curves.png", "a")
