"""The report of a study: it is well-formed whatever the study holds, says what is best, and counts and splits correctly."""

from __future__ import annotations

import math
import random
import re
import shlex
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from unisono.files.journal import Record
from unisono.observe.pages.svg import safe
from unisono.task.name_value import parse
from unisono.tuning.report.document import html_of, write_report
from unisono.tuning.report.findings import (
    measures_of,
    pareto_front,
    parts_of,
    ranked_trials,
    settings_of_study,
    spread_over_parts,
    value_of,
)
from unisono.tuning.report.importance import importances
from unisono.tuning.report.spending import DUPLICATE, spans_of
from unisono.tuning.study.result import command_of
from unisono.tuning.study.study import (
    COMPLETE,
    FAILED,
    PRUNED,
    Study,
    Trial,
    begin_record,
    end_record,
    give_back_record,
    proposal_record,
)

NOW_S = 1_760_000_000.0
EMPTY_TAGS = ("meta", "br", "hr", "link", "img", "input", "wbr")
SPACE: Mapping[str, Any] = {
    "dimensions": [
        {"name": "lr", "low": 1e-4, "high": 1.0, "log": True, "whole": False, "when": {}},
        {"name": "optimizer", "choice": ["sgd", "adam"], "whole": False, "when": {}},
        {"name": "optimizer.momentum", "low": 0.0, "high": 0.99, "log": False, "whole": False, "when": {"optimizer": ["sgd"]}},
        {"name": "model.width", "low": 16, "high": 256, "log": True, "whole": True, "when": {}},
    ],
    "fixed": {"epochs": 30},
}
ABOUT: Mapping[str, Any] = {
    "task": "digits",
    "task_file": "examples/digits.py",
    "space": SPACE,
    "objectives": [{"metric": "val_accuracy", "higher_is_better": True}],
    "folds": 3,
    "fold_by": "stratified",
    "repeats": 2,
    "search": "tpe",
    "prune": "asha",
    "trials": 24,
    "seed": 0,
    "workers": 2,
    "made_by": {"unisono": "1.0"},
}
TWO: Mapping[str, Any] = {**ABOUT, "objectives": [*ABOUT["objectives"], {"metric": "seconds", "higher_is_better": False}]}


class Balance(HTMLParser):
    """Refuses a tag that is closed and was not opened, or the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.ids += [value for name, value in attrs if name == "id" and value is not None]
        if tag not in EMPTY_TAGS:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002 - as HTMLParser has it
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open}"
        self.open.pop()


def folded(*records: Mapping[str, Any], writer: str = "a") -> Study:
    study = Study()
    for number, record in enumerate(records):
        study.apply(Record(writer, number, record))
    return study


def checked(study: Study, about: Mapping[str, Any]) -> str:
    """The page, found to be well-formed and to fetch nothing."""
    page = html_of(study, about, NOW_S + 10_000)
    balance = Balance()
    balance.feed(page)
    balance.close()
    assert not balance.open
    assert len(balance.ids) == len(set(balance.ids))
    for picture in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        root = ET.fromstring(picture)
        assert root.get("role") == "img" and root.get("aria-label")
        assert "nan" not in re.sub(r"<title>.*?</title>|<text.*?</text>", "", picture, flags=re.DOTALL).lower()
    assert "http://" not in page and "https://" not in page and "src=" not in page and "href=" not in page and "@import" not in page
    assert not balance.seen & {"link", "img", "iframe"}
    return page


def realistic(num_trials: int = 24, num_objectives: int = 1, seed: int = 3) -> Study:
    """Four blocks of a job; of every six trials one is pruned and one fails, is no number, is given back or runs."""
    draw = random.Random(seed)
    records: list[Mapping[str, Any]] = [
        {"event": "job", "job": "job1", "host": "n1", "num_blocks": 4, "block_size": 2, "at_s": NOW_S - 5},
        {"event": "left", "job": "job1", "at_s": NOW_S + 9_000},
    ]
    for trial in range(num_trials):
        values: dict[str, Any] = {
            "lr": 10 ** draw.uniform(-4, 0),
            "optimizer": draw.choice(["sgd", "adam"]),
            "model.width": draw.randint(16, 256),
        }
        if values["optimizer"] == "sgd":
            values["optimizer.momentum"] = draw.uniform(0, 0.99)
        at_s = NOW_S + trial // 4 * 100
        records += [proposal_record(trial, values), begin_record(trial, 0, f"job1/{trial % 4}", at_s)]
        good = 0.97 - 0.02 * (math.log10(values["lr"]) + 2) ** 2
        kind = trial % 12
        parts: list[dict[str, Any]] = [
            {"fold": fold, "repeat": repeat, "values": [good + draw.gauss(0, 0.003), 50.0 + draw.random()][:num_objectives]}
            for fold in range(3)
            for repeat in range(2)
        ]
        if kind == 3:
            records.append(end_record(trial, 0, FAILED, [], 9.0, "out of memory"))
        elif kind in (4, 10):
            records.append(end_record(trial, 0, PRUNED, [good - 0.1, 20.0][:num_objectives], 30.0))
        elif kind == 7:
            records.append(end_record(trial, 0, COMPLETE, [math.nan, math.inf][:num_objectives], 80.0))
        elif kind == 9:
            records.append(give_back_record(trial, 0, "stop requested", at_s + 40))
        elif kind != 11:
            means = [sum(part["values"][place] for part in parts) / 6 for place in range(num_objectives)]
            records.append(end_record(trial, 0, COMPLETE, means, 80.0, details={"parts": parts}))
    return folded(*records)


@pytest.mark.parametrize("num_trials", [1, 2, 7, 24, 60])
@pytest.mark.parametrize("about", [ABOUT, TWO, {}], ids=["one", "two", "unknown"])
def test_the_page_is_well_formed(num_trials: int, about: Mapping[str, Any]) -> None:
    page = checked(realistic(num_trials, len(about.get("objectives", ["one"]))), about)
    assert page.count("<tr id=") == num_trials


def test_it_is_written_as_a_file_of_its_own(tmp_path: Path) -> None:
    study = realistic()
    write_report(study, ABOUT, tmp_path / "report.html", NOW_S)
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == html_of(study, ABOUT, NOW_S, tmp_path)
    assert f"unisono train examples/digits.py --from-study {tmp_path}" in html_of(study, ABOUT, NOW_S, tmp_path)
    write_report(study, ABOUT, tmp_path / "report.html")
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_an_empty_study_says_so() -> None:
    assert "has no trial yet" in checked(Study(), ABOUT)
    assert "has no trial yet" in checked(Study(), {})
    job = {"event": "job", "job": "j", "num_blocks": 2, "block_size": 1, "at_s": NOW_S}
    assert "has no trial yet" in checked(folded(job), ABOUT)


def test_trials_of_which_none_has_ended() -> None:
    page = checked(
        folded(proposal_record(0, {"lr": 0.1}), proposal_record(1, {"lr": 0.2}), begin_record(1, 0, "j/0", NOW_S)), ABOUT
    )
    assert "1 running, 1 waiting" in page and "No trial has ended yet" in page and "no complete trial has a value yet" in page


def test_one_trial() -> None:
    page = checked(folded(proposal_record(0, {"lr": 0.1, "optimizer": "adam"}), end_record(0, 0, COMPLETE, [0.5], 3.0)), ABOUT)
    assert "--set lr=0.1 --set optimizer=adam" in page and "needs at least 8 complete trials; there is 1" in page


def test_the_best_settings_are_a_command_that_means_the_same() -> None:
    values = {"lr": 0.012345678901234, "model.kind": "it's <b>", "model.digit": "1", "model.flag": True, "model.none": None}
    worse = {**values, "lr": 0.5}
    study = folded(
        proposal_record(0, values),
        end_record(0, 0, COMPLETE, [0.9], 1.0),
        proposal_record(1, worse),
        end_record(1, 0, COMPLETE, [0.8], 1.0),
    )
    about = {**ABOUT, "space": {"fixed": {"epochs": 30, "algorithm": "easgd"}}}
    command = command_of(about, study.trials[0])
    words = shlex.split(command)
    assert words[:7] == ["unisono", "train", "examples/digits.py", "-n", "2", "--algorithm", "easgd"]
    assert parse([word for word in words[7:] if word != "--set"]) == {"epochs": 30, **values}
    assert safe(command) in checked(study, about)
    assert "trial 0" in checked(study, ABOUT)
    lower = {**ABOUT, "objectives": [{"metric": "loss", "higher_is_better": False}]}
    assert safe(command_of(lower, study.trials[1])) in checked(study, lower)


def test_texts_are_escaped() -> None:
    bad = "<script>alert('x')</script>\x1b[31m \ud800 & \"quoted\"\nmore of it" + "." * 200
    study = folded(
        proposal_record(0, {bad: bad}),
        begin_record(0, 0, f"{bad}/0", NOW_S),
        end_record(0, 0, FAILED, [], 1.0, bad),
        proposal_record(1, {bad: "a"}),
        end_record(1, 0, COMPLETE, [1.0], 1.0),
    )
    about = {"task": bad, "objectives": [{"metric": bad, "higher_is_better": True}], "made_by": {bad: bad}, "search": bad}
    page = checked(study, about)
    page.encode()
    assert "<script>alert" not in page and "&lt;script&gt;alert(&#x27;x&#x27;)" in page


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, 1e300, "text"])
def test_values_that_are_no_numbers_are_shown_and_never_best(value: Any) -> None:
    first = end_record(
        0, 0, COMPLETE, [value], 1.0, details={"parts": [{"fold": 0, "values": [value]}, {"values": None}], "spread": value}
    )
    study = folded(proposal_record(0, {"lr": 0.1}), first, proposal_record(1, {"lr": 0.2}), end_record(1, 0, COMPLETE, [0.5], 1.0))
    for high in (True, False):
        about = {**ABOUT, "objectives": [{"metric": "m", "higher_is_better": high}]}
        assert [trial.number for trial in ranked_trials(study, measures_of(about)[0])] == [1]
        page = checked(study, about)
        assert "--set lr=0.2" in page and "--set lr=0.1" not in page
        assert (f"{value:.4g}" if isinstance(value, float) else str(value)) in page
    assert "no complete trial has a value yet" in checked(folded(proposal_record(0, {"lr": 0.1}), first), ABOUT)


def test_trials_whose_settings_were_lost() -> None:
    assert value_of(Trial(0)) is None
    assert "0.25" in checked(folded(end_record(0, 0, COMPLETE, [0.25], 1.0), end_record(1, 0, PRUNED, [0.5], 1.0)), ABOUT)


def test_a_much_worse_trial_does_not_press_the_others_together() -> None:
    records = [
        record for n in range(8) for record in (proposal_record(n, {"lr": 0.1}), end_record(n, 0, COMPLETE, [0.9 + n / 100], 1.0))
    ]
    assert "much worse" not in checked(folded(*records), ABOUT)
    page = checked(folded(*records, proposal_record(8, {"lr": 0.1}), end_record(8, 0, COMPLETE, [-1e9], 1.0)), ABOUT)
    assert "1 much worse trial is drawn" in page and "-1e+09" in page


def test_conditional_settings_break_the_line() -> None:
    sgd, adam = {"lr": 0.1, "optimizer": "sgd", "optimizer.momentum": 0.9}, {"lr": 0.1, "optimizer": "adam"}
    study = folded(
        *(
            one
            for n, v in enumerate((sgd, adam))
            for one in (proposal_record(n, {**v, "model.width": 32}), end_record(n, 0, COMPLETE, [n], 1.0))
        )
    )
    ways = dict(re.findall(r'<path d="([^"]*)" class="way[^"]*"[^>]* data-t="(\d)"', checked(study, ABOUT)))
    pieces = {trial: (way.count("M"), way.count("L")) for way, trial in ways.items()}
    assert pieces == {"0": (1, 4), "1": (2, 2)}  # five axes; then two and two of them, the third has no place


def test_a_setting_alone_between_two_that_are_absent_is_seen() -> None:
    study = folded(proposal_record(0, {"optimizer": "sgd"}), end_record(0, 0, PRUNED, [1.0], 1.0))
    ways = re.findall(r'<path d="([^"]*)" class="way', checked(study, ABOUT))
    assert len(ways) == 1 and re.fullmatch(r"M[\d.]+ [\d.]+h12", ways[0])


def test_two_objectives_have_a_front() -> None:
    points = [(0.9, 10.0), (0.8, 5.0), (0.7, 20.0), (0.95, 40.0), (0.9, 12.0), (math.nan, 1.0)]
    study = folded(
        *(
            one
            for n, point in enumerate(points)
            for one in (proposal_record(n, {"lr": 0.1 + n}), end_record(n, 0, COMPLETE, point, 1.0))
        )
    )
    front = [trial.number for trial in pareto_front(study, measures_of(TWO))]
    assert front == [3, 0, 1]
    page = checked(study, TWO)
    assert [number for number in range(6) if f"--set lr={0.1 + number}" in page] == [0, 1, 3]
    assert "Objectives against each other" in page and "best so far" not in page and page.count("mark complete front") == 3


def test_equal_points_are_all_on_the_front() -> None:
    study = folded(*(end_record(n, 0, COMPLETE, [1.0, 2.0], 1.0) for n in range(3)))
    assert [trial.number for trial in pareto_front(study, measures_of(TWO))] == [0, 1, 2]


def test_spread_is_the_given_one_or_that_of_the_parts() -> None:
    parts = [{"fold": fold, "values": [value, 2 * value]} for fold, value in enumerate((1.0, 2.0, 3.0))]
    trial = folded(end_record(0, 0, COMPLETE, [2.0, 4.0], 1.0, details={"parts": parts})).trials[0]
    assert (spread_over_parts(trial), spread_over_parts(trial, 1)) == (1.0, 2.0)
    assert [part.value for part in parts_of(trial, 1)] == [2.0, 4.0, 6.0] and parts_of(trial, 2) == []
    given = folded(end_record(0, 0, COMPLETE, [2.0, 4.0], 1.0, details={"parts": parts, "spread": 0.5})).trials[0]
    assert (spread_over_parts(given), spread_over_parts(given, 1)) == (0.5, 2.0)
    assert "2 ± 1" in checked(folded(end_record(0, 0, COMPLETE, [2.0], 1.0, details={"parts": parts})), ABOUT)


def test_settings_are_those_of_the_space_and_what_trials_had_beside_it() -> None:
    study = folded(proposal_record(0, {"lr": 2.0, "new": 3, "optimizer": "lion"}), proposal_record(1, {"new": 5}))
    found = {one.name: one for one in settings_of_study(study, ABOUT)}
    assert list(found) == ["lr", "optimizer", "optimizer.momentum", "model.width", "new"]
    assert (found["lr"].low, found["lr"].high, found["lr"].log) == (1e-4, 2.0, True)
    assert found["optimizer"].choices == ("sgd", "adam", "lion")
    assert (found["new"].low, found["new"].high, found["new"].choices) == (3.0, 5.0, None)


def test_cost_importance_and_variance_are_on_the_page() -> None:
    study = realistic()
    page = checked(study, ABOUT)
    (objective,) = measures_of(ABOUT)
    shares = importances(ranked_trials(study, objective), settings_of_study(study, ABOUT))
    assert f"lr: {shares['lr']:.1%}" in page and "main effects only" in page
    assert "Where the differences come from" in page and "random starts within a fold" in page
    hours = sum(span.worker_s for span in spans_of(study, ABOUT, NOW_S + 10_000)) / 3600
    assert f"<b>{hours:.3g}</b>" in page and "job1/3 " in page
    twice = folded(
        begin_record(0, 0, "a/0", 0.0),
        begin_record(0, 1, "a/1", 9.0),
        *(end_record(0, attempt, COMPLETE, [1.0], 5.0) for attempt in (0, 1)),
    )
    assert f"<td>{DUPLICATE}</td>" in checked(twice, ABOUT) and "span done-twice" in checked(twice, ABOUT)


def test_trials_are_counted_by_the_job_that_asked_for_most() -> None:
    jobs = [{"event": "job", "job": name, "at_s": NOW_S, "trials": trials} for name, trials in (("a", 24), ("b", 40), ("c", 10))]
    assert "1 of 40 trials" in checked(folded(*jobs, proposal_record(0, {"lr": 0.1})), ABOUT)
    assert "1 of 24 trials" in checked(folded(*jobs[2:], proposal_record(0, {"lr": 0.1})), ABOUT)


def test_accepted_changes_are_reported() -> None:
    assert "files of the task changed 2 times" in checked(folded(proposal_record(0, {})), {**ABOUT, "accepted": [{}, {}]})
