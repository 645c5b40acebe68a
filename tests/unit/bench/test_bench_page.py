"""The template of the results pages, the frame that writes them, and that the published pages are those of their raw data."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from bench import (
    asynchronous,
    asynchronous_link,
    checkpoint,
    collectives,
    elastic,
    exchange,
    horovod,
    horovod_programs,
    invariance,
    jets,
    keras,
    many_workers,
    overlap,
    programs_of_others,
    record,
    servers,
    shards,
    time_to_accuracy,
    train,
    tune,
    tune_gain,
)
from bench.bounds import judge, summary, told
from bench.figure import Line, Panel, Picture
from bench.groups import ROOT
from bench.measurement import Measurement, begin
from bench.page import Page, Table, disturbances
from bench.rounds import Estimate
from tests.faults import kill_page

RESULTS = ROOT / "docs" / "results"
PAGES: Mapping[str, Callable[[Any], Page]] = {
    "asynchronous": asynchronous.page_of,
    "asynchronous_link": asynchronous_link.page_of,
    "checkpoint": checkpoint.page_of,
    "collectives": collectives.page_of,
    "elastic": elastic.page_of,
    "exchange": exchange.page_of,
    "horovod": horovod.page_of,
    "horovod_programs": horovod_programs.page_of,
    "programs_of_others": programs_of_others.page_of,
    "invariance": invariance.page_of,
    "invariance_gpu": invariance.page_of,
    "jets": jets.page_of,
    "keras": keras.page_of,
    "kill_fuzz": kill_page.page_of,
    "many_workers": many_workers.page_of,
    "mnist_cnn": time_to_accuracy.page_of,
    "overlap": overlap.page_of,
    "servers": servers.page_of,
    "shards": shards.page_of,
    "train": train.page_of,
    "tune": tune.page_of,
    "tune_digits": tune_gain.page_of,
    "tune_indian_pines": tune_gain.page_of,
}
BY_HAND = {"slurm_chain"}


@pytest.mark.parametrize("name", PAGES)
def test_a_published_page_is_that_of_its_raw_data(name: str) -> None:
    result = json.loads((RESULTS / f"{name}.json").read_text())
    assert PAGES[name](result).text(name) + "\n" == (RESULTS / f"{name}.md").read_text(), "write it again by --page-only"


def test_every_published_page_is_known() -> None:
    assert {path.stem for path in RESULTS.glob("*.json")} == {*PAGES, *BY_HAND}


def of_speed(result: Mapping[str, Any]) -> Page:
    lines = [Line("ours", [1, 2], [result["times"], 2.0])]
    return Page(
        question="Is it fast?",
        answer="It is.",
        result=result,
        tables=[Table(["row", "us"], [["ours", "1"], ["ours A/A", "1"]], "Times:")],
        bounds=[judge("one worker", Estimate(result["times"], 0.9, 1.2), "times as long", at_most=1.0)],
        picture=Picture("Times", [[Panel("", "x", "y", lines)]]),
        lists={"Settings": ["`--lr 1`"]},
        reading=["A row is a row."],
        raw="all times",
    )


RESULT = {
    "command": "python -m bench.speed",
    "quick": False,
    "machine": {"CPU": "some"},
    "sittings": [{"at": "now", "commit": "1", "load": "0.9"}],
    "contenders": {"ours": {"about": "Unisono"}, "peer": "another"},
    "absent": {"third": "no compiler"},
    "not_measured": ["GPUs"],
    "times": 1.1,
    "blocks": {"a": {"versions": {"ours": {"torch": "2"}}, "failed": {"peer": "it died"}, "stolen_cpu_s": 1.0}},
}


def test_the_form_of_a_page() -> None:
    text = of_speed(RESULT).text("speed")
    told = [
        "# Is it fast?",
        "It is. 1 of 1 bounds hold, 1 of them within the noise.",
        "busy with other things (load before the start: 0.9)",
        "![Times](speed.png)",
        "Times:",
        "| one worker | 1.10 [0.90, 1.20] times as long | at most 1 | **holds within the noise** |",
        "## Settings",
        "## Contenders",
        "- `ours`: Unisono",
        "- `peer`: another",
        "## Took no part",
        "- `third`: no compiler",
        "- `peer` at `a`: it died",
        "## How to read it",
        "took away during the measurement: 1.0 s",
        "## How to repeat it",
        "    python -m bench.speed",
        "## Machine and versions",
        "- CPU: some",
        "- measured: now, commit 1, load before 0.9",
        "- ours: torch 2",
        "## What was not measured",
        "- GPUs",
        "Raw data: [speed.json](speed.json): all times.",
    ]
    assert [text.count(part) for part in told] == [1] * len(told)
    assert [text.index(part) for part in told] == sorted(text.index(part) for part in told)


def test_a_quick_run_answers_nothing() -> None:
    text = of_speed({**RESULT, "quick": True}).text("speed")
    assert "Not a measurement" in text
    assert "It is." not in text and "holds" not in text


def test_parts_stand_below_the_page() -> None:
    page = Page(question="All?", parts=[of_speed(RESULT)], not_measured=["much"])
    lines = page.text("all").splitlines()
    assert [line for line in lines if line.startswith("## ")] == ["## Is it fast?", "## What was not measured"]
    assert "### How to read it" in lines and lines[-1] == "Raw data: [all.json](all.json)."


def test_a_page_without_a_picture_draws_what_its_tables_compare(tmp_path: Path) -> None:
    drawn = {"ours": Estimate(1.0, 1.0, 1.0), "peer": Estimate(9.0, 8.0, 10.0)}
    tables = [Table(["row", "times"], [["ours", "1"], ["peer", "9"]], drawn=drawn, drawn_label="times as long") for _ in range(4)]
    page = Page(question="Is `it` fast?", tables=tables)
    picture = page.drawn()
    assert picture is not None and picture.title == "Is it fast?" and [len(row) for row in picture.rows] == [2, 2]
    assert picture.rows[0][0].settings["xscale"] == "log", "they are far apart"
    page.publish("speed", tmp_path)
    assert "](speed.png)" in (tmp_path / "speed.md").read_text() and (tmp_path / "speed.png").exists()
    assert Page(question="Is it fast?", tables=[Table(["row"], [["ours"]])]).drawn() is None


def test_a_process_that_keeps_the_cores_busy_is_named() -> None:
    idle = {"ours": 0.0, "horovod": 0.2}
    assert disturbances([{"idle_share_of_a_core": idle}])[-1].startswith("horovod used 20% of a core")
    assert disturbances([{}]) == []


def test_bounds_are_counted() -> None:
    bounds = [judge("a", 1.0, at_least=1.0), judge("b", 0.5, at_least=1.0), judge("c", Estimate(0.9, 0.8, 1.1), at_least=1.0)]
    assert summary(bounds) == "2 of 3 bounds hold, 1 of them within the noise."
    assert summary([]) == ""


def test_many_bounds_on_the_same_thing_are_one_part_of_a_sentence() -> None:
    three = [judge(name, value, "times", at_most=3.0) for name, value in (("a", 1.0), ("b", 0.5), ("c", 2.0))]
    other = judge("d", 4.0, "ms", at_most=3.0)
    assert told([*three, other]) == "0.50 to 2.00 times, in 3 cases; d: 4.00 ms"
    assert told(three[:2]) == "a: 1.00 times; b: 0.50 times"


def measured(measurement: Measurement, part: str = "") -> None:
    measurement.record({"rounds": 1}, part)
    measurement.finish(part, times=1.1, blocks={}, not_measured=[])


def test_raw_data_and_page_are_written_and_the_page_alone_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "UNFINISHED", tmp_path / "unfinished")
    args = argparse.Namespace(out=tmp_path, quick=False, fresh=False, page_only=False)
    measured(begin("speed", args, of_speed))
    raw, page = tmp_path / "speed.json", tmp_path / "speed.md"
    first = page.read_text()
    assert json.loads(raw.read_text())["settings"] == {"rounds": 1} and (tmp_path / "speed.png").stat().st_size > 1_000
    page.unlink()
    before = raw.stat().st_mtime_ns
    args.page_only = True
    with pytest.raises(SystemExit) as end:
        begin("speed", args, of_speed)
    assert end.value.code == 0
    assert page.read_text() == first and raw.stat().st_mtime_ns == before


def test_a_part_leaves_the_other_parts_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "UNFINISHED", tmp_path / "unfinished")
    args = argparse.Namespace(out=tmp_path, quick=False, fresh=False, page_only=False)
    (tmp_path / "both.json").write_text('{"old": {"kept": 1}}')
    measured(begin("both", args, lambda result: Page(question="Both?", parts=[of_speed(result["new"])])), "new")
    result = json.loads((tmp_path / "both.json").read_text())
    assert result["old"] == {"kept": 1} and result["new"]["times"] == 1.1
