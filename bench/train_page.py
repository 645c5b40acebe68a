"""The page and the raw data of `bench.train`, both from one result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.record import write_json
from bench.report import disturbances, page, provenance, section, warnings
from bench.rounds import Samples, markdown_table, ratio, restored
from bench.training_bounds import difference, show_workers, verdicts

Blocks = Sequence[tuple[Mapping[str, Any], Mapping[str, Samples]]]


def publish(result: Mapping[str, Any], out: Path) -> str:
    """Local: write both files; returns tables and bounds as text."""
    blocks = [(block, restored(block["times_us"])) for block in result["blocks"].values()]
    kinds = {name: contender["kind"] for name, contender in result["contenders"].items()}
    tables = [_table(result, block, samples) for block, samples in blocks]
    found = [
        f"**{verdict}**: {text}"
        for block, samples in blocks
        for text, verdict in verdicts(block["case"], block["workers"], samples, kinds, result["ours"])
        if not result["quick"]
    ]
    write_json(out / "train.json", result)
    (out / "train.md").write_text(_page(result, blocks, tables, found))
    return page(*tables, "\n".join(found))


def _table(result: Mapping[str, Any], block: Mapping[str, Any], samples: Mapping[str, Samples]) -> str:
    """One worker is compared with the loop by hand, several with ours."""
    ours, by_hand = result["ours"], result["by_hand"]
    base = by_hand if by_hand in samples else ours
    header = [
        show_workers(block["workers"]),
        "a step, us",
        f"times as long as {base}",
        f"longer than {base}, us",
        "loss at the end",
    ]
    rows = []
    for name, sample in samples.items():
        compared = [str(ratio(sample, samples[base])), _whole(difference(sample, samples[base]))] if name != base else ["1", "0"]
        rows.append([name, f"{sample.median:.0f}", *compared, f"{block['loss_after'][name]:.3f}"])
    case = result["settings"]["cases"][block["case"]]
    about = f"`{block['case']}`: {case['about']}; global batch {case['global_batch']}, {case['optimizer']}"
    return f"{about}\n\n{markdown_table(header, rows)}"


def _whole(found: Any) -> str:
    return f"{found.median:.0f} [{found.low:.0f}, {found.high:.0f}]"


def _page(result: Mapping[str, Any], blocks: Blocks, tables: Sequence[str], found: Sequence[str]) -> str:
    versions = {name: version for block, _ in blocks for name, version in block["versions"].items()}
    failed = {
        f"{name}` at `{block['case']}, {show_workers(block['workers'])}": why
        for block, _ in blocks
        for name, why in block["failed"].items()
    }
    return page(
        "# A step of training, against its peers",
        warnings(result),
        "The same model, optimiser, data in memory, global batch and number of steps for everybody, one thread in each worker.\n"
        "Every contender has its own processes, all alive during the whole block and asleep unless it is their turn. That they\n"
        "learn, and that the replicas of one training hold equal weights, is checked at the end.",
        *tables,
        section("Bounds", found),
        section("Contenders", [f"`{name}`: {contender['about']}" for name, contender in result["contenders"].items()]),
        section("Took no part", [f"`{name}`: {why}" for name, why in {**result["absent"], **failed}.items()]),
        section("How to read it", _reading(result, blocks)),
        provenance(result["command"], result["machine"], result["sittings"], versions),
        section("What was not measured", list(result["not_measured"])),
        "Raw data: [train.json](train.json), `times_us[contender][rank][round][epoch]`, the time of an epoch divided by its steps.",
    )


def _reading(result: Mapping[str, Any], blocks: Blocks) -> list[str]:
    settings = result["settings"]
    efforts = [
        f"{name}: {effort['warm_up']} epochs to warm up, then {effort['rounds']} rounds; a turn is one epoch that is not timed and "
        f"{effort['epochs']} timed ones of {settings['cases'][name]['steps']} steps."
        for name, effort in settings["effort"].items()
    ]
    return [
        *efforts,
        "In each round all contenders have their turn, in a shuffled order. What is timed is from the end of an epoch to the end "
        "of the next: with us also the line on the console, the lines of metrics.jsonl and the sums of the epoch. No evaluation.",
        "The time of an epoch is that of its slowest rank. Ratios and differences are medians over rounds, each of the medians of "
        "two contenders in the same round; in brackets the 95 % interval of a bootstrap over rounds. A bound is missed when the "
        "whole interval lies beyond it; where two contenders are of the kind that a bound names, the faster one counts.",
        "Numbers too small for float32's usual form count as zero in all processes (`torch.set_flush_denormal`): how many a "
        "training makes is chance, and they slow down whoever has them.",
        "The A/A row is Unisono against itself: what it differs by is what the machine does, not the code.",
        *disturbances(block for block, _ in blocks),
    ]
