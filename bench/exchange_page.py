"""The page of `bench.exchange`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bench.blocks import Effort
from bench.bounds import Asked, judge, told
from bench.page import INTERLEAVED, Page, Result, Table
from bench.rounds import Samples, estimate, ratio, restored
from bench.sizes import show_count, show_size

FASTER, FASTER_BYTES = Asked("peer", times_as_fast=3.0), 1_000_000
MOST_UNEVEN = 1.2
"""What the busiest of equal workers may have been served, as a multiple of the least."""


def page_of(result: Result) -> Page:
    """Pure: the page of these raw data."""
    blocks = {key: (block, restored(block["times_us"])) for key, block in result["blocks"].items()}
    effort, shares = Effort(**result["settings"]["effort"]), result["shares"]
    kinds = {name: one["kind"] for name, one in result["contenders"].items()}
    bounds = [
        FASTER.judge(key, samples, kinds, result["ours"])
        for key, (block, samples) in blocks.items()
        if block["bytes"] == FASTER_BYTES
    ]
    where = f"{show_count(shares['workers'], 'worker')}, {show_size(shares['num_bytes'])}"
    uneven = estimate(unevenness(shares["served"][result["ours"]]))
    bounds.append(judge(where, uneven, "times as often is the busiest served as the least", at_most=MOST_UNEVEN))
    return Page(
        question="How many round trips a second does a server make with its workers, against a parameter server written by hand?",
        answer=f"Through shared memory: {told(bounds)}.",
        result=result,
        setup="Each worker sends a float32 vector; the server adds it to its centre and answers with the centre. One server, all "
        "on one machine, one thread in each rank, and no worker pauses between two calls. What comes back is checked before and "
        "after.",
        tables=[*(_table(result["peer"], key, *of_key) for key, of_key in blocks.items()), _shares_table(where, shares)],
        bounds=bounds,
        reading=[
            f"Up to 4 MB there are {effort.short_rounds} rounds of {effort.short_calls} calls of each worker, above "
            f"{effort.long_rounds} rounds of {effort.long_calls}; of the shares {shares['rounds']} rounds.",
            "A turn begins with a call of every worker that is not timed and is answered when all have called. Round trips/s are "
            "those of all workers together, until the slowest has done its calls; GB/s count both directions.",
            f"`times {result['peer']}` is how many times as fast.",
            INTERLEAVED,
        ],
        raw="`times_us[contender][rank][round][0]`, microseconds for each round trip at the server (0 for the server itself), and "
        "`shares.served[contender][round][worker]`",
    )


def unevenness(served: Sequence[Sequence[int]]) -> np.ndarray:
    """Pure: for each round the calls of the busiest worker as a multiple of the least's."""
    counts = np.asarray(served, dtype=np.float64)
    return np.asarray(counts.max(axis=1) / np.maximum(counts.min(axis=1), 1.0))


def _table(peer: str, key: str, block: Mapping[str, Any], samples: Mapping[str, Samples]) -> Table:
    rows = []
    for name, sample in samples.items():
        per_s = 1e6 / sample.median
        times = "1" if name == peer else str(ratio(samples[peer], sample))
        rows.append([name, f"{per_s:.0f}" if per_s >= 100 else f"{per_s:.1f}", f"{2 * block['bytes'] * per_s / 1e9:.2f}", times])
    return Table([key, "round trips/s", "GB/s", f"times {peer}"], rows)


def _shares_table(where: str, shares: Mapping[str, Any]) -> Table:
    rows = []
    for name, served in shares["served"].items():
        per_s = np.asarray(served).sum(axis=1) / shares["seconds"]
        rows.append([name, f"{np.median(per_s):.0f}", str(estimate(unevenness(served)))])
    return Table(
        [where, "round trips/s", "busiest / least"], rows, f"How evenly equal workers are served in {shares['seconds']:g} s:"
    )
