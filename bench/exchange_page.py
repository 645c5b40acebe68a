"""The page and the raw data of `bench.exchange`, both from one result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.blocks import Effort
from bench.record import write_json
from bench.report import disturbances, page, provenance, section, warnings
from bench.rounds import Samples, estimate, judged, markdown_table, ratio, restored
from bench.sizes import show_size
from bench.training_bounds import show_workers

FASTER, FASTER_BYTES = 3.0, 1_000_000
"""Times as fast as the peer that the shared-memory carrier must be, and at which size."""
MOST_UNEVEN = 1.2
"""What the busiest of equal workers may have been served, as a multiple of the least."""

Blocks = Sequence[tuple[Mapping[str, Any], Mapping[str, Samples]]]


def publish(result: Mapping[str, Any], out: Path) -> str:
    """Local: write both files; returns tables and bounds as text."""
    blocks = [(block, restored(block["times_us"])) for block in result["blocks"].values()]
    tables = [*(_table(result, block, samples) for block, samples in blocks), _shares_table(result)]
    found = [] if result["quick"] else verdicts(result, blocks)
    write_json(out / "exchange.json", result)
    (out / "exchange.md").write_text(_page(result, blocks, tables, found))
    return page(*tables, "\n".join(found))


def verdicts(result: Mapping[str, Any], blocks: Blocks) -> list[str]:
    """Pure: each bound in words, with whether it holds."""
    found = []
    for block, samples in blocks:
        if block["bytes"] == FASTER_BYTES:
            times = ratio(samples[result["peer"]], samples[result["ours"]])
            where = f"{show_workers(block['workers'])}, {show_size(FASTER_BYTES)}"
            verdict = judged(times, FASTER, at_least=True)
            found.append(f"**{verdict}**: {where}: {times} times as fast as {result['peer']}, at least {FASTER:g} asked")
    shares = result["shares"]
    uneven = estimate(unevenness(shares["served"][result["ours"]]))
    verdict = judged(uneven, MOST_UNEVEN, at_least=False)
    where = f"{show_workers(shares['workers'])}, {show_size(shares['num_bytes'])}"
    found.append(
        f"**{verdict}**: {where}: the busiest is served {uneven} times as often as the least, at most {MOST_UNEVEN:g} asked"
    )
    return found


def unevenness(served: Sequence[Sequence[int]]) -> np.ndarray:
    """Pure: for each round the calls of the busiest worker as a multiple of the least's."""
    counts = np.asarray(served, dtype=np.float64)
    return np.asarray(counts.max(axis=1) / np.maximum(counts.min(axis=1), 1.0))


def _table(result: Mapping[str, Any], block: Mapping[str, Any], samples: Mapping[str, Samples]) -> str:
    header = [f"{show_workers(block['workers'])}, {show_size(block['bytes'])}", "round trips/s", "GB/s", f"times {result['peer']}"]
    rows = []
    for name, sample in samples.items():
        per_s = 1e6 / sample.median
        times = "1" if name == result["peer"] else str(ratio(samples[result["peer"]], sample))
        rows.append([name, f"{per_s:.0f}" if per_s >= 100 else f"{per_s:.1f}", f"{2 * block['bytes'] * per_s / 1e9:.2f}", times])
    return markdown_table(header, rows)


def _shares_table(result: Mapping[str, Any]) -> str:
    shares = result["shares"]
    rows = []
    for name, served in shares["served"].items():
        per_s = np.asarray(served).sum(axis=1) / shares["seconds"]
        rows.append([name, f"{np.median(per_s):.0f}", str(estimate(unevenness(served)))])
    header = [f"{show_workers(shares['workers'])}, {show_size(shares['num_bytes'])}", "round trips/s", "busiest / least"]
    return f"How evenly equal workers are served in {shares['seconds']:g} s:\n\n{markdown_table(header, rows)}"


def _page(result: Mapping[str, Any], blocks: Blocks, tables: Sequence[str], found: Sequence[str]) -> str:
    versions = {name: version for block, _ in blocks for name, version in block["versions"].items()}
    failed = {
        f"{name}` with `{show_workers(block['workers'])}": why for block, _ in blocks for name, why in block["failed"].items()
    }
    return page(
        "# A server and its workers",
        warnings(result),
        "Each worker sends a float32 vector; the server adds it to its centre and answers with the centre. One server, all on one\n"
        "machine, one thread in each rank, and no worker pauses between two calls. What comes back is checked before and after.",
        *tables,
        section("Bounds", found),
        section("Contenders", [f"`{name}`: {contender['about']}" for name, contender in result["contenders"].items()]),
        section("Took no part", [f"`{name}`: {why}" for name, why in {**result["absent"], **failed}.items()]),
        section("How to read it", _reading(result, blocks)),
        provenance(result["command"], result["machine"], result["sittings"], versions),
        section("What was not measured", list(result["not_measured"])),
        "Raw data: [exchange.json](exchange.json): `times_us[contender][rank][round][0]`, microseconds for each round trip at the\n"
        "server (0 for the server itself), and `shares.served[contender][round][worker]`.",
    )


def _reading(result: Mapping[str, Any], blocks: Blocks) -> list[str]:
    effort, shares = Effort(**result["settings"]["effort"]), result["shares"]
    return [
        f"Up to 4 MB there are {effort.short_rounds} rounds of {effort.short_calls} calls of each worker, above "
        f"{effort.long_rounds} rounds of {effort.long_calls}. In each round all contenders have their turn, in a shuffled order.",
        "A turn begins with a call of every worker that is not timed and is answered when all have called. Round trips/s are those "
        "of all workers together, until the slowest has done its calls; GB/s count both directions.",
        f"`times {result['peer']}` is how many times as fast: the median over rounds of the ratio of times in the same round, with "
        "the 95 % interval of a bootstrap over rounds. A bound is missed when the whole interval lies beyond it.",
        "The A/A row is the same engine again: what it differs from the first row is what the machine does, not the code.",
        f"Shares: {shares['rounds']} rounds, all contenders in each; the median over rounds of the ratio, with its interval.",
        *disturbances(block for block, _ in blocks),
    ]
