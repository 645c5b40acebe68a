"""The page and the raw data of `bench.horovod`, both from one result."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.record import write_json
from bench.report import disturbances, page, provenance, section, warnings
from bench.rounds import Samples, judged, markdown_table, ratio, restored

BOUNDS: Mapping[str, tuple[str, float]] = {"training": ("ddp", 1.0), "tensors": ("gloo", 5.0)}
"""At least so many times as fast as the best of a kind."""


def publish(result: Mapping[str, Any], out: Path) -> str:
    """Local: write both files; returns tables and bounds as text."""
    samples = {part: restored(block["times_us"]) for part, block in result["blocks"].items()}
    tables = [_table(result, part, found) for part, found in samples.items()]
    verdicts = [] if result["quick"] else [_verdict(result, part, samples[part]) for part in BOUNDS]
    write_json(out / "horovod.json", result)
    (out / "horovod.md").write_text(_page(result, tables, verdicts))
    return page(*tables, "\n".join(verdicts))


def _table(result: Mapping[str, Any], part: str, samples: Mapping[str, Samples]) -> str:
    settings, ours = result["settings"], result["ours"]
    if part.startswith("training"):
        case = settings["case"]
        about = f"A step of `{case['name']}`: {case['about']}; global batch {case['global_batch']}, {case['optimizer']}, 2 workers."
    else:
        tensors = settings["tensors"]
        about = f"{tensors['number']} tensors of {tensors['bytes']} bytes summed, 2 workers."
    rows = [
        [name, f"{sample.median:.0f}", "1" if name == ours else str(ratio(sample, samples[ours]))]
        for name, sample in samples.items()
    ]
    return f"{about}\n\n{markdown_table([part, 'us', f'times as long as {ours}'], rows)}"


def _verdict(result: Mapping[str, Any], part: str, samples: Mapping[str, Samples]) -> str:
    kind, factor = BOUNDS[part]
    peers = [name for name in samples if result["contenders"][part][name]["kind"] == kind]
    if not peers:
        return f"**not judged**: {part}: no contender of the kind {kind} took part"
    best = min(peers, key=lambda name: samples[name].median)
    found = ratio(samples[best], samples[result["ours"]])
    verdict = judged(found, factor, at_least=True)
    return f"**{verdict}**: {part}: {found} times as fast as {best}, at least {factor:g} asked"


def _page(result: Mapping[str, Any], tables: list[str], verdicts: list[str]) -> str:
    blocks = result["blocks"]
    versions = {f"{name} ({part})": found for part, block in blocks.items() for name, found in block["versions"].items()}
    failed = {f"{name}` in `{part}": why for part, block in blocks.items() for name, why in block["failed"].items()}
    return page(
        "# Programs written for Horovod, against their peers",
        warnings(result),
        "Every contender has its own processes, one thread in each, all alive during a part and, but for Horovod's, asleep\n"
        "unless it is their turn. Horovod's look for work all the time, which disturbs the others; so it is measured apart.\n"
        "That sums are right, that trainings learn, and that the replicas of one hold equal weights, is checked.",
        *tables,
        section("Bounds", verdicts),
        *(
            section(f"Contenders: {part}", [f"`{name}`: {one['about']}" for name, one in all_of.items()])
            for part, all_of in result["contenders"].items()
        ),
        section("Took no part", [f"`{name}`: {why}" for name, why in {**result["absent"], **failed}.items()]),
        section("How to read it", _reading(result)),
        provenance(result["command"], result["machine"], result["sittings"], versions),
        section("What was not measured", list(result["not_measured"])),
        "Raw data: [horovod.json](horovod.json), `times_us[contender][rank][round][turn]`.",
    )


def _reading(result: Mapping[str, Any]) -> list[str]:
    settings = result["settings"]
    training, tensors = settings["training"], settings["tensors"]
    return [
        f"Training: {training['warm_up']} epochs to warm up, then {training['rounds']} rounds; a turn is one epoch that is not "
        f"timed and {training['epochs']} timed of {settings['case']['steps']} steps.",
        "Autotune: a search that begins with poor settings and one that begins with the defaults may end at different ones; the "
        "defaults stand beside it.",
        f"Tensors: {tensors['rounds']} rounds of {tensors['calls']} timed calls; a call sums all {tensors['number']} tensors.",
        "In each round all contenders have their turn, in a shuffled order. The time is that of the slowest rank. Ratios are "
        "medians over rounds, each of the medians of two contenders in the same round; in brackets the 95 % interval of a "
        "bootstrap over rounds. A bound is missed when the whole interval lies beyond it; where two contenders are of the "
        "kind that a bound names, the faster one counts.",
        "The A/A row is ours against itself: what it differs by is what the machine does, not the code.",
        *disturbances(result["blocks"].values()),
    ]
