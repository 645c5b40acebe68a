"""What the same bits cost: a training cut into shards against the plain all-reduce, both ours, interleaved in one run.

    python -m bench.shards                   # about a quarter of an hour on two cores that do nothing else
    python -m bench.shards --quick           # a look whether it works: few epochs, no judgement

Writes shards.md (tables, bound, how it was measured) and shards.json (every epoch).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial

from bench.blocks import Blocks
from bench.bounds import judge, told
from bench.contenders.contender import NOISE
from bench.contenders.training import OURS, Way, start_unisono
from bench.groups import temporary_folder
from bench.measurement import begin, guarded
from bench.options import parse, parser_of
from bench.page import INTERLEAVED, Page, Result, compared
from bench.rounds import ratio, restored
from bench.sizes import show_count
from bench.train import Effort, efforts, measure, settings_of
from bench.training_cases import CASES

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


WAYS: Sequence[Way] = (
    Way(OURS, "ours", "the plain all-reduce", start_unisono),
    Way("unisono A/A", "noise", NOISE, start_unisono),
    Way(
        "2 shards",
        "shards",
        "`--shards 2`: with 2 workers one shard each, so micro-batches are as before",
        partial(start_unisono, shards=2),
    ),
    Way(
        "8 shards",
        "shards",
        "`--shards 8`: with 2 workers four shards each, computed one after another",
        partial(start_unisono, shards=8),
    ),
)


def main() -> None:
    """Local, blocking: measure and publish."""
    args = parse(parser_of("shards", __doc__))
    effort = QUICK if args.quick else FULL
    blocks = Blocks(begin("shards", args, page_of), settings_of((CASES[name] for name in effort), effort), (OURS,))
    with temporary_folder() as folder:
        for name, workers in BLOCKS:
            measure(blocks, CASES[name], workers, WAYS, effort[name], folder)
    blocks.finish(contenders={way.name: way.about for way in WAYS}, not_measured=NOT_MEASURED)


def page_of(result: Result) -> Page:
    """Pure: the page of these raw data."""
    blocks = [(block, restored(block["times_us"])) for block in result["blocks"].values()]
    cost = ratio(blocks[0][1]["2 shards"], blocks[0][1][OURS])
    bounds = [judge("mnist_cnn, 2 workers, 2 shards", cost, "times as long as the plain all-reduce", at_most=MOST)]
    tables = []
    for block, samples in blocks:
        case, losses = result["settings"]["cases"][block["case"]], block["loss_after"]
        about = f"A step of `{block['case']}`: {case['about']}; global batch {case['global_batch']}."
        columns = {"loss at the end": lambda name, losses=losses: f"{losses[name]:.3f}"}
        workers = show_count(block["workers"], "worker")
        tables.append(compared(workers, samples, OURS, about, columns, f"{block['case']}, {workers}"))
    return Page(
        question="What do the same bits cost?",
        answer=f"A step of {told(bounds)}.",
        result=result,
        setup="The same model, data and global batch, one thread in each worker, with and without `--shards`; all of it Unisono.",
        tables=tables,
        bounds=bounds,
        reading=[
            *efforts(result),
            INTERLEAVED,
            "With 8 shards a worker computes smaller micro-batches one by one: the rows of 8 shards show what that costs.",
        ],
        raw="`times_us[contender][rank][round][epoch]`, the time of an epoch divided by its steps",
    )


if __name__ == "__main__":
    sys.exit(guarded(main))
