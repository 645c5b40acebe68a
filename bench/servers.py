"""Is the server a bottleneck, and do several help? Four workers, one server or two, each on a host of its own at 250 Mbit/s.

    python -m bench.servers --mnist DIR          # about five minutes; only as root, as it makes network namespaces
    python -m bench.servers --mnist DIR --quick  # a look whether it works

Each turn is one `unisono train --algorithm downpour` of a wide network whose gradient takes longer to send than to compute. All of
a single server's vectors pass its one link; two servers have half of them each. Writes servers.md and servers.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.hosts import Across, limits, test_hosts
from bench.options import add_mnist, parse
from bench.progress import Progress
from bench.record import write_json
from bench.report import page, provenance, section, warnings
from bench.rounds import Stopwatch, estimate, markdown_table, orders
from bench.session import guarded, open_record, result_of
from bench.trainings import data_options, trained

RATE, WORKERS, LIMIT_S, SEED = "250mbit", 4, 300.0, 20
ROWS = {"1 server": 1, "1 server A/A": 1, "2 servers": 2}
ROUNDS, QUICK_ROUNDS = 6, 1
EFFORT = {"epochs": 2, "num_train": 1280, "num_test": 100}
OPTIONS = (
    *("--algorithm", "downpour", "--lr", "0.001", "--global-batch", "128"),
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
    args = _arguments()
    if args.figure:
        print(publish(json.loads((args.out / "servers.json").read_text()), args.out))
        return
    progress, watch = Progress(), Stopwatch()
    num_rounds = QUICK_ROUNDS if args.quick else ROUNDS
    settings = {**EFFORT, "rounds": num_rounds, "workers": WORKERS, "rate": RATE, "options": OPTIONS}
    record = open_record("servers", args, settings, progress)
    with test_hosts(WORKERS + max(ROWS.values()), RATE) as hosts:
        across = {servers: Across(hosts[: WORKERS + servers]) for servers in set(ROWS.values())}
        for number, order in enumerate(orders(list(ROWS), num_rounds, SEED)):
            for row in order:
                if (key := f"{row}, round {number}") in record.blocks:
                    continue
                progress.say(f"{key} of {num_rounds} ({watch} so far)")
                given = [*OPTIONS, "--servers", str(ROWS[row]), *data_options(args.mnist, EFFORT)]
                record.add(key, {"row": row, **trained(given, LIMIT_S, partial(_commands, across[ROWS[row]]))})
    result = result_of(args, record, watch, not_measured=NOT_MEASURED, runs=list(record.blocks.values()))
    result["command"] = result["command"].replace(str(args.mnist), "DIR").replace(f" --out {args.out}", "")
    print(publish(result, args.out))
    record.finish()
    progress.keep(f"written to {args.out}/servers.md and .json after {watch}")


def _commands(across: Across, command: Sequence[str]) -> list[list[str]]:
    return across.commands("auto", "-m", "unisono", *command)


def publish(result: Mapping[str, Any], out: Path) -> str:
    """Local: write page and raw data; returns the table as text."""
    runs, settings = result["runs"], result["settings"]
    speeds = {row: np.array([_last(run)["updates_per_s"] for run in runs if run["row"] == row]) for row in ROWS}
    base = speeds["1 server"]
    rows = []
    for row, values in speeds.items():
        own = [_last(run) for run in runs if run["row"] == row]
        ratio = "1" if row == "1 server" else str(estimate(values / base))
        shares = [f"{100 * median(one[name] for one in own):.0f} %" for name in ("waiting", "server_load")]
        rows.append([row, f"{np.median(values):.2f}", ratio, *shares])
    table = markdown_table(["", "updates/s", "times one server", "workers wait", "load of the first server"], rows)
    num_bytes = 4 * runs[0]["num_parameters"]
    text = page(
        "# Several servers",
        warnings(result),
        f"{settings['workers']} workers of Downpour with {num_bytes / 1e6:.1f} MB of weights, each on a host of its own with a "
        f"link of {settings['rate'].removesuffix('mbit')} Mbit/s, engine gloo,\none thread in each process. A call sends the "
        "gradient and brings the weights back.",
        table,
        section("How to read it", _reading(settings, num_bytes)),
        provenance(result["command"], result["machine"], result["sittings"], {"trainings": runs[0]["versions"]}),
        section("What was not measured", list(result["not_measured"])),
        "Raw data: [servers.json](servers.json), every epoch of every run.",
    )
    write_json(out / "servers.json", result)
    (out / "servers.md").write_text(text)
    return table


def _last(run: Mapping[str, Any]) -> Mapping[str, Any]:
    """The last epoch, as the first one has the start in it."""
    last: Mapping[str, Any] = run["epochs"][-1]
    return last


def _reading(settings: Mapping[str, Any], num_bytes: int) -> Sequence[str]:
    seconds = num_bytes * 8 / (float(settings["rate"].removesuffix("mbit")) * 1e6)
    return [
        f"{settings['rounds']} rounds; in each every row is one training, in a shuffled order. The ratio is the median over "
        "rounds, with the 95 % interval of a bootstrap; the A/A row shows the noise. There is no bound.",
        f"One vector takes {seconds * 1000:.0f} ms on a link, so one server can make at most {1 / seconds:.1f} updates a second, "
        f"and two {2 / seconds:.1f}. A worker needs its own link twice for each call.",
        "Load: share of the time in which the first server works on calls. Its link can be full while its core is not.",
    ]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.servers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_mnist(parser)
    return parse(parser)


if __name__ == "__main__":
    sys.exit(guarded(main))
