"""The page and the raw data of `bench.keras`, both from one result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.contenders.keras import OURS, OURS_TWICE, PEER_TWICE, PLAIN
from bench.record import write_json
from bench.report import disturbances, page, provenance, section, warnings
from bench.rounds import Samples, judged, markdown_table, ratio, restored

MOST_TIMES = 1.1
"""As long as plain `model.fit` a step of ours may take, on one worker."""

Block = tuple[Mapping[str, Any], Mapping[str, Samples]]


def publish(result: Mapping[str, Any], out: Path) -> str:
    """Local: write both files; returns tables and bounds as text."""
    blocks = [(block, restored(block["times_us"])) for block in result["blocks"].values()]
    tables = [*(_table(result, *block) for block in blocks), _two_workers(blocks), _copies(blocks)]
    found = [] if result["quick"] else verdicts(blocks)
    write_json(out / "keras.json", result)
    (out / "keras.md").write_text(_page(result, blocks, tables, found))
    return page(*tables, "\n".join(found))


def verdicts(blocks: Sequence[Block]) -> list[str]:
    """Pure: the bound of each block in words, with whether it holds."""
    found = []
    for block, samples in blocks:
        times = ratio(samples[OURS], samples[PLAIN])
        verdict = judged(times, MOST_TIMES, at_least=False)
        found.append(f"**{verdict}**: {_where(block)}: {times} times as long as {PLAIN}, at most {MOST_TIMES:g} asked")
    return found


def _where(block: Mapping[str, Any]) -> str:
    return f"{block['case']} on {block['backend']}"


def _table(result: Mapping[str, Any], block: Mapping[str, Any], samples: Mapping[str, Samples]) -> str:
    """What runs on one worker, against plain Keras."""
    header = [_where(block), "a step, us", f"times as long as {PLAIN}", "cores", "loss at the end"]
    rows = []
    for name, sample in samples.items():
        if result["contenders"][name]["workers"] == 1:
            times = "1" if name == PLAIN else str(ratio(sample, samples[PLAIN]))
            after = block["after"][name]
            rows.append([name, f"{sample.median:.0f}", times, f"{after['cores']:.2f}", f"{after['loss']:.3f}"])
    case = result["settings"]["cases"][block["case"]]
    about = f"`{block['case']}`: {case['about']}; global batch {case['global_batch']}, {case['optimizer']}; 1 worker"
    return f"{about}\n\n{markdown_table(header, rows)}"


def _two_workers(blocks: Sequence[Block]) -> str:
    """The same global batch on two workers, against one and against tf.distribute."""
    rows = []
    for block, samples in blocks:
        if OURS_TWICE in samples:
            rows.append(
                [
                    _where(block),
                    *(_median(samples, name) for name in (OURS, OURS_TWICE, PEER_TWICE)),
                    str(ratio(samples[OURS], samples[OURS_TWICE])),
                    str(ratio(samples[PEER_TWICE], samples[OURS_TWICE])) if PEER_TWICE in samples else "-",
                ]
            )
    header = [
        "a step, us",
        "unisono, 1 worker",
        OURS_TWICE,
        PEER_TWICE,
        "2 times as fast as 1",
        "times as fast as tf.distribute",
    ]
    return f"The same global batch on two workers (no bound):\n\n{markdown_table(header, rows)}" if rows else ""


def _median(samples: Mapping[str, Samples], name: str) -> str:
    return f"{samples[name].median:.0f}" if name in samples else "-"


def _copies(blocks: Sequence[Block]) -> str:
    """Number of arrays and their bytes, of one step on one worker."""
    if not blocks:
        return ""
    names = list(blocks[0][0]["copies"])
    rows = [[_where(block), *(_amount(block["copies"][name]) for name in names)] for block, _ in blocks]
    table = markdown_table(["arrays in a step (KB)", *names], rows)
    return f"What moves between our vectors and the framework:\n\n{table}"


def _amount(counted: Mapping[str, float]) -> str:
    return f"{counted['num']:.3g} ({counted['bytes'] / 1e3:.1f})" if counted["num"] else "0"


def _page(result: Mapping[str, Any], blocks: Sequence[Block], tables: Sequence[str], found: Sequence[str]) -> str:
    versions = {f"{name}, {block['backend']}": version for block, _ in blocks for name, version in block["versions"].items()}
    failed = {f"{name}` at `{_where(block)}": why for block, _ in blocks for name, why in block["failed"].items()}
    return page(
        "# A step of a Keras model",
        warnings(result),
        "The same model, optimiser, data in memory, global batch and number of steps for everybody, one thread to compute in each\n"
        "worker. Every contender has processes of its own on each backend, all alive during the whole block and asleep unless it\n"
        "is their turn. That they learn, and that the replicas of one training hold equal weights, is checked at the end.",
        *tables,
        section("Bounds", found),
        section("Contenders", [f"`{name}`: {contender['about']}" for name, contender in result["contenders"].items()]),
        section("Took no part", [f"`{name}`: {why}" for name, why in {**result["absent"], **failed}.items()]),
        section("How to read it", _reading(result, blocks)),
        provenance(result["command"], result["machine"], result["sittings"], versions),
        section("What was not measured", list(result["not_measured"])),
        "Raw data: [keras.json](keras.json), `times_us[contender][rank][round][epoch]`, the time of an epoch divided by its\n"
        "steps; of several workers of Unisono the first one alone knows it, and the others say 0.",
    )


def _reading(result: Mapping[str, Any], blocks: Sequence[Block]) -> list[str]:
    settings = result["settings"]
    efforts = [
        f"{name}: {effort['warm_up']} epochs to warm up, then {effort['rounds']} rounds; a turn is one `fit` of an epoch that is "
        f"not timed and {effort['epochs']} timed of {settings['cases'][name]['steps']} steps."
        for name, effort in settings["effort"].items()
    ]
    return [
        *efforts,
        "In each round all contenders have their turn, in a shuffled order. What is timed is from the end of an epoch to the end "
        "of the next, as a callback sees it: so also what is done once an epoch, which counts more than it would in longer epochs.",
        "Ratios are medians over rounds, each of two contenders in the same round; in brackets the 95 % interval of a bootstrap "
        "over rounds. The bound is missed when the whole interval lies beyond it. The A/A row is Unisono against itself: what it "
        "differs by is what the machine does, not the code.",
        "Cores: CPU time of the first worker's process divided by the time that passed. Above 1 Python works beside the framework, "
        "which one worker can do here on the second core; two workers have one core each.",
        "Arrays: *packed* are copies of our vectors that the framework may have; batches, and vectors where it shares memory, "
        "enter as they lie, or are copied again; its results are looked at where they lie, or copied on leaving; *stored* is what "
        "is copied from them into our gradients and statistics. The optimiser moves our own vector, in its place. What JAX does "
        "with an array of NumPy, whether it reads it there or copies it again, is not counted.",
        *disturbances(block for block, _ in blocks),
    ]
