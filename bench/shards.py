"""What the same bits cost: a training cut into shards against the plain all-reduce, both ours, interleaved in one run.

    python -m bench.shards                   # about a quarter of an hour on two cores that do nothing else
    python -m bench.shards --quick           # a look whether it works: few epochs, no judgement

Writes shards.md (tables, bound, how it was measured) and shards.json (every epoch).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.blocks import prepare
from bench.contenders.training import OURS, Start, Way, start_unisono
from bench.groups import FOLDERS
from bench.options import parse
from bench.progress import Progress
from bench.record import write_json
from bench.report import disturbances, page, provenance, section, warnings
from bench.rounds import Samples, Stopwatch, judged, markdown_table, ratio, restored
from bench.session import guarded, open_record, result_of
from bench.train import Effort, block_key, measure
from bench.training_bounds import show_workers
from bench.training_cases import CASES, write_data

MOST = 1.10
"""Times as long as the plain all-reduce: what 2 workers with 2 shards may take for mnist_cnn."""
BLOCKS = (("mnist_cnn", 2), ("mnist_cnn", 1), ("digits", 2))
FULL: Mapping[str, Effort] = {"mnist_cnn": Effort(60, 1, 5), "digits": Effort(60, 5, 30)}
QUICK: Mapping[str, Effort] = {"mnist_cnn": Effort(1, 1, 8), "digits": Effort(3, 1, 30)}
NOT_MEASURED = (
    "More workers than 2, more than one thread in a worker, more than one machine, GPUs.",
    "Models with batch-norm, whose statistics travel too.",
    "Evaluations, which are cut into shards as well.",
)


def _in_shards(num_shards: int) -> Start:
    return partial(start_unisono, shards=num_shards)


WAYS: Sequence[Way] = (
    Way(OURS, "ours", "the plain all-reduce", (1, 2), start_unisono),
    Way("unisono A/A", "noise", "the same again in other processes: its distance from 1 is the noise", (1, 2), start_unisono),
    Way("2 shards", "shards", "`--shards 2`: with 2 workers one shard each, so micro-batches are as before", (1, 2), _in_shards(2)),
    Way("8 shards", "shards", "`--shards 8`: with 2 workers four shards each, computed one after another", (1, 2), _in_shards(8)),
)


def main() -> None:
    """Local, blocking: measure and publish."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.shards", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    args = parse(parser)
    if args.figure:
        print(publish(json.loads((args.out / "shards.json").read_text()), args.out))
        return
    progress, watch = Progress(), Stopwatch()
    effort = QUICK if args.quick else FULL
    settings = {
        "effort": {name: dataclasses.asdict(one) for name, one in effort.items()},
        "cases": {name: dataclasses.asdict(CASES[name]) for name in effort},
    }
    record = open_record("shards", args, settings, progress)
    with tempfile.TemporaryDirectory(prefix=f"{FOLDERS}{os.getpid()}-") as folder:
        for name, workers in BLOCKS:
            data = Path(folder) / f"{name}.npz"
            write_data(CASES[name], data)
            able, _ = prepare([way.contender(CASES[name], data) for way in WAYS], progress)
            measure(record, CASES[name], workers, able, effort[name], progress)
    result = result_of(
        args,
        record,
        watch,
        contenders={way.name: way.about for way in WAYS},
        not_measured=NOT_MEASURED,
        blocks={key: record.blocks[key] for key in (block_key(CASES[name], workers) for name, workers in BLOCKS)},
    )
    print(publish(result, args.out))
    record.finish()
    progress.keep(f"written to {args.out}/shards.md and .json after {watch}")


def publish(result: Mapping[str, Any], out: Path) -> str:
    """Local: write both files; returns the tables as text."""
    blocks = [(block, restored(block["times_us"])) for block in result["blocks"].values()]
    tables = [_table(result, block, samples) for block, samples in blocks]
    bound = _bound(blocks[0][1])
    write_json(out / "shards.json", result)
    effort = result["settings"]["effort"]
    text = page(
        "# What the same bits cost",
        warnings(result),
        "The same model, data and global batch, one thread in each worker, with and without `--shards`; all of it Unisono.\n"
        "What is timed is a step of training.",
        *tables,
        section("Bound", [] if result["quick"] else [bound]),
        section("Contenders", [f"`{name}`: {about}" for name, about in result["contenders"].items()]),
        section(
            "How to read it",
            [
                *(
                    f"{name}: {one['warm_up']} epochs to warm up, then {one['rounds']} rounds of {one['epochs']} timed epochs of "
                    f"{result['settings']['cases'][name]['steps']} steps, all contenders in each round, in a shuffled order."
                    for name, one in effort.items()
                ),
                "Ratios are medians over rounds with the 95 % interval of a bootstrap; the A/A row is the noise.",
                "With 8 shards a worker computes smaller micro-batches one by one: the rows of 8 shards show what that costs.",
                *disturbances(block for block, _ in blocks),
            ],
        ),
        provenance(result["command"], result["machine"], result["sittings"], blocks[0][0]["versions"]),
        section("What was not measured", list(result["not_measured"])),
        "Raw data: [shards.json](shards.json), `times_us[contender][rank][round][epoch]`: an epoch's time divided by its steps.",
    )
    (out / "shards.md").write_text(text)
    return page(*tables, bound)


def _bound(samples: Mapping[str, Samples]) -> str:
    found = ratio(samples["2 shards"], samples[OURS])
    verdict = judged(found, MOST, at_least=False)
    return f"**{verdict}**: mnist_cnn, 2 workers, 2 shards: {found} times as long as the plain all-reduce, at most {MOST:g} asked"


def _table(result: Mapping[str, Any], block: Mapping[str, Any], samples: Mapping[str, Samples]) -> str:
    rows = []
    for name, sample in samples.items():
        compared = "1" if name == OURS else str(ratio(sample, samples[OURS]))
        rows.append([name, f"{sample.median:.0f}", compared, f"{block['loss_after'][name]:.3f}"])
    about = result["settings"]["cases"][block["case"]]
    header = [show_workers(block["workers"]), "a step, us", "times as long as plain", "loss at the end"]
    return f"`{block['case']}`: {about['about']}; global batch {about['global_batch']}\n\n{markdown_table(header, rows)}"


if __name__ == "__main__":
    sys.exit(guarded(main))
