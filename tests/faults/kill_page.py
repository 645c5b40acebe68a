"""The page and the raw data of `tests.faults.kill_fuzz`, both from one record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.machine import describe_machine
from bench.page import Page, Table, one_line
from bench.record import write_json
from tests.faults.kill_attempt import END_LIMIT_S
from tests.faults.kill_plan import COMMAND, LOCK_STEP, MOMENTS
from tests.faults.kill_verdict import TOLERANCE

STEPS_PER_EPOCH = 30
COMPARED = (
    "Of every finished run: the weights, the best weights, every metric that is not a time, the history of epochs, every line of "
    "metrics.jsonl (each step and each epoch once); status.json says finished; no draft and no half checkpoint is left. "
    "Where the number of workers changes, of the values only the weights and the loss of every step, to rounding.",
    "After every kill: each checkpoint with a good name is whole to the last byte; the newest is no older than before; the next "
    "attempt resumed from that one; all processes were gone within {limit_s:g} s; no traceback. The survivors of one rank "
    "named it, but for deaths while starting (ranks that have not met are ended after 1.5 s, as a launcher "
    "does) and after the last step.",
    "The task: 900 images of digits, a network with dropout and running statistics (without both where the number of workers "
    "changes), momentum, a cosine schedule, {epochs} epochs of {steps} steps with a validation after each, a test at the end; "
    "a checkpoint every 4 steps.",
)
REPLAYED = (
    "With a server no two runs are alike, so the other run is the replay of the recorded order of calls (`--replay`), by virtual "
    "workers in one process that nobody disturbs."
)
NOT_SHOWN = (
    "SIGKILL ends processes, and the system keeps what they wrote. A machine that loses power is another matter: all is brought to "
    "the disk before a checkpoint gets its name, but no power was cut to try it.",
    "One machine, its own disk, one to three workers without GPUs. Network file systems and several nodes were not tried here.",
    "Most attempts are forked from a process that has loaded PyTorch, and run the same command without a launcher: a new "
    "interpreter takes seconds to start. One attempt of eight is started as a user does.",
)


def publish(record: Mapping[str, Any], file: Path) -> None:
    """Local: write both files."""
    raw = {
        "machine": describe_machine(),
        "versions": {name: version(name) for name in ("torch", "numpy", "safetensors", "unisono")},
        "columns": list(record["sittings"][0]["kills"][0]),
        "sittings": {
            str(number): {**sitting, "kills": {str(at): list(kill.values()) for at, kill in enumerate(sitting["kills"], 1)}}
            for number, sitting in enumerate(record["sittings"], 1)
        },
    }
    write_json(file.with_suffix(".json"), raw)
    page_of(raw).publish(file.stem, file.parent)


def page_of(raw: Mapping[str, Any]) -> Page:
    """Pure: the page of these raw data."""
    sittings = [
        {**sitting, "kills": [dict(zip(raw["columns"], kill, strict=True)) for kill in sitting["kills"].values()]}
        for sitting in raw["sittings"].values()
    ]
    served = [sitting for sitting in sittings if _algorithm(sitting) != LOCK_STEP]
    same = [sitting for sitting in sittings if len(set(sitting["workers"])) == 1 and sitting not in served]
    changing = [sitting for sitting in sittings if sitting not in (*same, *served)]
    parts = [_part("The same number of workers", same, "bit for bit")] if same else []
    for name in dict.fromkeys(map(_algorithm, served)):
        of_it = [sitting for sitting in served if _algorithm(sitting) == name]
        parts.append(_part(f"A server and {of_it[0]['workers'][0] - 1} workers: {name}", of_it, "bit for bit", "their replay"))
    if changing:
        parts.append(_part("2, 1 and 3 workers in turn", changing, f"to {TOLERANCE:g} of the norm of each tensor"))
    commands = "\n    ".join(sitting["command"] for sitting in sittings)
    return Page(
        question="Does a training that is killed at random moments end as one that nobody disturbed?",
        answer=" ".join(part.answer for part in parts),
        result={"command": commands, "machine": raw["machine"], "sittings": sittings},
        measures_time=False,
        setup="A training is killed by SIGKILL at random moments and started again by the same command in the same directory, "
        f"until it is finished. Its end must be that of {'its replay' if served else 'a run'} that nobody disturbed and that saved "
        "nothing before its end.",
        parts=parts,
        lists={
            "What is compared": [*_compared(sittings[0], bool(served)), *([REPLAYED] if served else [])],
            "What was found to be wrong": [one_line(sitting["failure"]) for sitting in sittings if sitting["failure"]],
        },
        versions={"python": raw["versions"]},
        not_measured=NOT_SHOWN,
        raw="of every kill whom and when, from which step that attempt resumed, how many steps it made, which checkpoint was the "
        "newest afterwards, and how long the others took to end",
    )


def _compared(sitting: Mapping[str, Any], is_served: bool) -> list[str]:
    limit_s, epochs = sitting.get("end_limit_s", END_LIMIT_S), sitting.get("epochs", "20")
    steps = STEPS_PER_EPOCH * (sitting["workers"][0] - 1 if is_served else 1)
    return [text.format(limit_s=limit_s, epochs=epochs, steps=steps) for text in COMPARED]


def _algorithm(sitting: Mapping[str, Any]) -> str:
    return str(sitting.get("algorithm", LOCK_STEP))


def _part(title: str, sittings: Sequence[Mapping[str, Any]], how: str, other: str = "the undisturbed one") -> Page:
    kills = [kill for sitting in sittings for kill in sitting["kills"]]
    runs = [run for sitting in sittings for run in sitting["runs"]]
    all_of = "Not all" if any(sitting["failure"] for sitting in sittings) else "All"
    drafts = sum(kill["draft_left"] for kill in kills)
    began = [kill for kill in kills if kill["first_step"] is not None]
    typed = sum(kill["started_by"] == COMMAND for kill in kills)
    return Page(
        question=title,
        answer=f"{all_of} runs ({len(runs)}, with {len(kills)} kills together) ended as {other}, {how}.",
        tables=[_table(kills)],
        reading=[
            f"Weights differ by at most {max((run['deviation'] for run in runs), default=0.0):.1e} of the norm of a tensor; one "
            f"run was killed up to {max((run['kills'] for run in runs), default=0)} times.",
            f"{drafts} kills left a draft of a checkpoint behind, so they came in the middle of a write.",
            f"{len(kills) - len(began)} kills came before the run was taken up, {len(began)} after it.",
            f"{typed} of the killed attempts were started by `unisono train -n N`, the others forked.",
            f"The longest time from a kill until all processes were gone: {max(kill['to_end_s'] for kill in kills):.2f} s.",
            f"{sum(kill['steps'] for kill in kills)} steps were made by attempts that were killed.",
        ],
    )


def _table(kills: Sequence[Mapping[str, Any]]) -> Table:
    victims = ("one rank", "all", "launcher")

    def of(kill: Mapping[str, Any]) -> str:
        return "one rank" if kill["victim"].startswith("rank") else str(kill["victim"])

    rows = []
    for moment in MOMENTS:
        counts = [sum(kill["moment"] == moment and of(kill) == victim for kill in kills) for victim in victims]
        rows.append([moment, *map(str, counts), str(sum(counts))])
    totals = [sum(of(kill) == victim for kill in kills) for victim in victims]
    return Table(["killed while", *victims, "together"], [*rows, ["together", *map(str, totals), str(len(kills))]])
