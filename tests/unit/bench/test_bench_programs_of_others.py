"""The bench that runs programs of others: what counts as equal, how texts are changed, and what its page says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench.others import programs
from bench.others.program import Program, compiled, notebook
from bench.programs_of_others import NOISE, compared, page_of


def program(**given: object) -> Program:
    told: dict[str, object] = {
        "family": "keras_io",
        "name": "one",
        "repository": "a/b",
        "path": "one.py",
        "stand_in": "-",
        "moved": "-",
    }
    return Program(**{**told, **given})  # type: ignore[arg-type]


def test_weights_are_compared_with_how_far_they_moved() -> None:
    one = {"before 0": np.full(4, 100.0), "weights 0": np.full(4, 101.0), "loss": np.array([2.0])}
    other = {"weights 0": np.full(4, 101.1), "loss": np.array([2.0])}
    assert {name: found for found, name in compared(one, other)} == {"weights 0": pytest.approx(0.1), "loss": 0.0}


def test_a_tensor_that_moved_by_rounding_alone_is_compared_with_the_others() -> None:
    one = {"before 0": np.zeros(1), "weights 0": np.ones(1), "before 1": np.zeros(1), "weights 1": np.array([1e-8])}
    other = {"weights 0": np.ones(1), "weights 1": np.array([2e-8])}
    worst, name = max(compared(one, other))
    assert name == "weights 1" and worst == pytest.approx(1e-8 / NOISE)


def test_a_number_that_only_one_run_has_is_no_pass() -> None:
    ((difference, name),) = compared({"loss": np.ones(2), "accuracy": np.ones(2)}, {"loss": np.ones(2)})
    assert difference == float("inf") and name.startswith("accuracy")
    assert compared({"loss": np.ones(2)}, {"loss": np.ones(3)})[0][0] == float("inf")


def test_numbers_that_the_plain_run_gets_wrong_are_left_out_by_name() -> None:
    assert compared({"fit 0: fn": np.ones(1), "loss": np.ones(1)}, {"fit 0: fn": np.zeros(1), "loss": np.ones(1)}, r": fn$") == [
        (0.0, "loss")
    ]


def test_a_text_that_has_changed_upstream_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/one.py").write_text("epochs = 10\n")
    assert program(edits=[("epochs = 10", "epochs = 1")]).text(tmp_path, False) == {"one.py": "epochs = 1\n"}
    with pytest.raises(SystemExit, match=r"one\.py has nothing like 'epochs = 9' any more"):
        program(move=[("epochs = 9", "epochs = 1")]).text(tmp_path, True)


def test_a_notebook_is_the_program_that_it_writes_or_all_its_cells() -> None:
    def cells(*sources: str) -> str:
        return json.dumps({"cells": [{"cell_type": "code", "source": [source]} for source in sources]})

    assert notebook(cells("import json", "!ls", "print(1)")) == {"main.py": "import json\nprint(1)"}
    written = cells("%%writefile data.py\nx = 1", "import data", "%%writefile main.py\nimport data")
    assert notebook(written) == {"main.py": "import data", "data.py": "x = 1"}


def test_calls_get_other_arguments_and_results_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kept: list[object] = []
    names = {"fit": lambda **given: given, "evaluate": lambda found: found, "recorded": kept.append}
    exec(compiled(program(keywords={"fit": {"epochs": 1}}), "evaluate(fit(epochs=30, verbose=2))", ("evaluate",)), names)
    assert kept == [{"epochs": 1, "verbose": 2}]


def test_every_program_has_a_name_of_its_own() -> None:
    names = [one.name for one in programs()]
    assert len(names) == len(set(names)) > 30


def test_the_page_counts_verdicts_and_says_why(tmp_path: Path) -> None:
    passed = {"family": "pytorch_examples", "name": "mnist", "verdict": "passed", "says": "", "weights": 3, "numbers": 1}
    refused = {"family": "keras_io", "name": "siamese_contrastive", "verdict": "refused", "says": "a metric\nis a mean"}
    result = {"runs": [{**passed, "difference": 1e-12}, refused], "commits": {"a/b": "123"}, "versions": {}, "command": "c"}
    page_of(result).publish("page", tmp_path)
    text = (tmp_path / "page.md").read_text()
    assert "1 of 2 do, 1 are refused with the reason, 0 differ and say so, 0 differ as documented, 0 are wrong." in text
    assert "- siamese_contrastive: a metric is a mean" in text and "- a/b: 123" in text
