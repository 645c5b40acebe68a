"""docs/reference/metrics.md names every metric and every loss, and says of each what the code does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from unisono.metrics.base import DECISIONS, SCORES, VALUES
from unisono.metrics.find_metrics import METRICS, OF_LOGITS
from unisono.model.keras.loss_reading import BY_OPTION, OF_KERAS
from unisono.model.losses import resolve_loss
from unisono.model.losses.base import BORDERS
from unisono.model.losses.custom_loss import OF_TORCH
from unisono.model.losses.find_loss import LOSSES
from unisono.task.metric_names import ERRORS, TURNING
from unisono.task.metric_names import SCORES as SCORE_NAMES

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "metrics.md").read_text()
FROM = {
    DECISIONS: ("classes", "labels", "the same", "largest outputs"),
    SCORES: ("probabilities", "the same"),
    VALUES: ("numbers",),
}
OF_NUMBERED_CLASSES = ("nll", "focal", "sparse_categorical_crossentropy")


def rows(heading: str) -> Iterator[list[str]]:
    """The rows of the table that begins with this heading."""
    table = PAGE[PAGE.index(f"| {heading} |") :].partition("\n\n")[0]
    for line in table.splitlines()[2:]:
        yield [cell.strip() for cell in line.strip("|").split(" | ")]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_metric_has_its_row_and_no_other() -> None:
    found = [name for cells in rows("metric") for name in names(cells[0])]
    assert sorted(found) == sorted(METRICS)
    for cells in rows("metric"):
        assert len(cells) == 5 and all(cells), cells
        for name in names(cells[0]):
            assert any(word in cells[1] for word in FROM[METRICS[name](OF_LOGITS).needs or ""]), name


def kind_of_targets(loss: str, one_hot: bool | None) -> str:
    return "refused by the loss" if loss in OF_NUMBERED_CLASSES else "one-hot" if one_hot else "labels"


def test_every_loss_has_its_row_and_says_what_outputs_are() -> None:
    found = dict[str, tuple[str, str]]()
    for cells in rows("loss"):
        found |= dict.fromkeys(names(cells[0]), (cells[1], cells[2] if len(cells) > 2 else ""))
    assert set(LOSSES) <= set(found)
    for name in LOSSES:
        reading = resolve_loss(name).reading
        outputs, targets = found[name]
        assert outputs.partition(";")[0] == reading.predicts, name
        if reading.predicts in BORDERS:
            assert targets.strip(" |") == kind_of_targets(name, reading.one_hot), name
    for kind, (predicts, _) in OF_TORCH.items():
        if f"nn.{kind.__name__}" in found:
            assert found[f"nn.{kind.__name__}"][0] == predicts
    for name, (said, one_hot) in OF_KERAS.items():
        if name in found and name not in LOSSES:
            expected = "probabilities; logits with `from_logits=True`" if said == BY_OPTION else said or "unknown"
            assert found[name][0] == expected, name
            if said in (BY_OPTION, None, *BORDERS):
                assert found[name][1].strip(" |") == kind_of_targets(name, one_hot), name


def test_the_words_of_names_that_say_a_direction() -> None:
    (line,) = (line for line in PAGE.splitlines() if line.startswith("| the name |"))
    assert set(names(line)) == ERRORS | SCORE_NAMES | TURNING
