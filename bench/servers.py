"""Is the server a bottleneck, and do several help? Four workers, one server or two, each on a host of its own at 250 Mbit/s.

    python -m bench.servers --mnist DIR          # about five minutes; only as root, as it makes network namespaces
    python -m bench.servers --mnist DIR --quick  # a look whether it works

Each turn is one `unisono train --algorithm downpour` of a wide network whose gradient takes longer to send than to compute. All of
a single server's vectors pass its one link; two servers have half of them each. Writes servers.md and servers.json.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from statistics import median
from typing import Any

import numpy as np

from bench.hosts import Across, limits, test_hosts
from bench.measurement import begin, guarded
from bench.options import parse, parser_of
from bench.page import INTERLEAVED, Page, Result, Table
from bench.rounds import estimate, orders
from bench.trainings import PAPERS_DOWNPOUR, SAY_PAPERS_DOWNPOUR, data_options, trained

RATE, WORKERS, LIMIT_S, SEED = "250mbit", 4, 300.0, 20
ROWS = {"1 server": 1, "1 server A/A": 1, "2 servers": 2}
ROUNDS, QUICK_ROUNDS = 6, 1
EFFORT = {"epochs": 2, "num_train": 1280, "num_test": 100}
OPTIONS = (
    *(*PAPERS_DOWNPOUR, "--lr", "0.001", "--global-batch", "128"),
    *("--set", "model.kind=wide", "--set", "model.width=768", "--seed", "0"),
)

NOT_MEASURED = (
    limits(RATE),
    "More servers than two, faster links, real nodes; servers on one machine with shared memory, where two cores are too few to "
    "show anything.",
    "Rules that do more for each call than Downpour with plain SGD.",
)


def main() -> None:
    """Local, blocking: measure, and publish what came of it."""
    args = parse(parser_of("servers", __doc__), needs_mnist=True)
    measurement = begin("servers", args, page_of)
    num_rounds = QUICK_ROUNDS if args.quick else ROUNDS
    record = measurement.record({**EFFORT, "rounds": num_rounds, "workers": WORKERS, "rate": RATE, "options": OPTIONS})
    with test_hosts(WORKERS + max(ROWS.values()), RATE) as hosts:
        across = {servers: Across(hosts[: WORKERS + servers]) for servers in set(ROWS.values())}
        for number, order in enumerate(orders(list(ROWS), num_rounds, SEED)):
            for row in order:
                if record.lacks(key := f"{row}, round {number}"):
                    given = [*OPTIONS, "--servers", str(ROWS[row]), *data_options(args.mnist, EFFORT)]
                    record.add(key, {"row": row, **trained(given, LIMIT_S, across[ROWS[row]].unisono)})
    measurement.finish(not_measured=NOT_MEASURED, runs=list(record.blocks.values()))


def page_of(result: Result) -> Page:
    """Pure: the page of these raw data."""
    settings, num_bytes = result["settings"], 4 * result["runs"][0]["num_parameters"]
    rate = float(settings["rate"].removesuffix("mbit"))
    seconds = num_bytes * 8 / (rate * 1e6)
    # The last epoch, as the first one has the start in it.
    last: dict[str, list[Mapping[str, Any]]] = {
        row: [run["epochs"][-1] for run in result["runs"] if run["row"] == row] for row in ROWS
    }
    speeds = {row: np.array([epoch["updates_per_s"] for epoch in epochs]) for row, epochs in last.items()}
    times = {row: estimate(values / speeds["1 server"]) for row, values in speeds.items()}
    rows, header = [], ["", "updates/s", "times one server", "workers wait", "load of the first server"]
    for row, epochs in last.items():
        shares = [f"{100 * median(epoch[name] for epoch in epochs):.0f} %" for name in ("waiting", "server_load")]
        rows.append([row, f"{np.median(speeds[row]):.2f}", "1" if row == "1 server" else str(times[row]), *shares])
    return Page(
        question="Do two servers carry more than one, where the link is the bottleneck?",
        answer=f"Two servers make {times['2 servers']} times as many updates a second as one. There is no bound.",
        result=result,
        setup=f"{settings['workers']} workers of Downpour with {num_bytes / 1e6:.1f} MB of weights, each on a host of its own with "
        f"a link of {rate:g} Mbit/s, engine gloo, one thread in each process. A call sends the gradient and brings the weights "
        "back.",
        tables=[Table(header, rows, drawn=times, drawn_label="updates a second, times one server")],
        reading=[
            f"{settings['rounds']} rounds, in which every row is one training.",
            INTERLEAVED,
            f"One vector takes {seconds * 1000:.0f} ms on a link, so one server can make at most {1 / seconds:.1f} updates a "
            f"second, and two {2 / seconds:.1f}. A worker needs its own link twice for each call.",
            SAY_PAPERS_DOWNPOUR,
            "Load: share of the time in which the first server works on calls. Its link can be full while its core is not.",
        ],
        raw="every epoch of every run",
    )


if __name__ == "__main__":
    sys.exit(guarded(main))
