"""All-reduce through shared memory against gloo, three MPIs and DeepSpeed, interleaved in one run.

    python -m bench.collectives              # everything; about a quarter of an hour on two cores that do nothing else
    python -m bench.collectives --quick      # a look whether it works: few calls, no judgement

Writes collectives.md (tables, bounds, how it was measured), collectives.json (every call) and collectives.png.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from bench.blocks import FULL, QUICK, blocks_of, measure_blocks, prepare
from bench.collectives_page import publish
from bench.contenders import deepspeed_shm, gloo, intelmpi, memory_floor, mpich, openmpi, unisono_shm, unisono_shm_plain
from bench.options import add_sizes, counts, parse, sizes
from bench.progress import Progress
from bench.rounds import Stopwatch
from bench.session import guarded, open_record, result_of

CONTENDERS = (
    unisono_shm.CONTENDER,
    unisono_shm.AGAIN,
    unisono_shm_plain.CONTENDER,
    gloo.CONTENDER,
    openmpi.CONTENDER,
    mpich.CONTENDER,
    intelmpi.CONTENDER,
    deepspeed_shm.CONTENDER,
    memory_floor.CONTENDER,
)
OURS = unisono_shm.CONTENDER.name
SIZES = "4KB,400KB,4MB,40MB,100MB"
QUICK_SIZES = "4KB,4MB"

NOT_MEASURED = (
    "More than one machine, more than one NUMA node, ARM; more ranks than 4; more than one thread in a rank.",
    "Other types than float32, other operations than the sum, other collectives, non-blocking calls.",
    "MPI built for this machine by its site: here they are the wheels of PyPI with their own defaults, no tuning variables set.",
    "Calls among computation: here a rank does nothing between two calls, so caches and cores are at their best for everybody.",
)


def main() -> None:
    """Local, blocking: measure what is asked for and publish it."""
    args = _arguments()
    if args.figure:
        print(publish(json.loads((args.out / "collectives.json").read_text()), args.out))
        return
    progress, watch = Progress(), Stopwatch()
    effort = QUICK if args.quick else FULL
    wanted = [contender for contender in CONTENDERS if not args.only or contender.name in args.only]
    contenders, absent = prepare(wanted, progress)
    settings = {"effort": dataclasses.asdict(effort), "contenders": [contender.name for contender in contenders]}
    record = open_record("collectives", args, settings, progress)
    for num_ranks in args.ranks:
        measure_blocks(record, contenders, num_ranks, args.sizes, effort, progress, essential=(OURS,))
    result = result_of(
        args,
        record,
        watch,
        ours=OURS,
        contenders={contender.name: {"kind": contender.kind, "about": contender.about} for contender in contenders},
        absent=absent,
        not_measured=NOT_MEASURED,
        blocks=blocks_of(record, args.ranks, args.sizes),
    )
    print(publish(result, args.out))
    record.finish()
    progress.keep(f"written to {args.out}/collectives.md, .json and .png after {watch}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.collectives",
        description="All-reduce of float32 vectors on this machine: Unisono's shared memory against gloo, Open MPI, MPICH,\n"
        "Intel MPI and DeepSpeed, interleaved in one run. What they need is installed under .venv-bench/.",
        epilog="examples:\n"
        "  python -m bench.collectives                              the whole measurement, into docs/results/\n"
        "  python -m bench.collectives --quick                      a few calls at two sizes, into runs/bench/\n"
        "  python -m bench.collectives --ranks 2 --sizes 4KB,1MiB --only unisono-shm,gloo --out runs/look\n"
        "  python -m bench.collectives --figure                     page and figure again from docs/results/collectives.json\n"
        "An interrupted run goes on where it stopped when the same command is given again.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ranks", type=counts, default=[2, 4], metavar="N,N", help="numbers of ranks (default 2,4)")
    parser.add_argument("--only", type=_names, metavar="NAME,NAME", help=f"some of {', '.join(c.name for c in CONTENDERS)}")
    add_sizes(parser, SIZES, QUICK_SIZES)
    args = parse(parser)
    args.sizes = args.sizes or sizes(QUICK_SIZES if args.quick else SIZES)
    return args


def _names(text: str) -> set[str]:
    names, known = set(text.split(",")), [contender.name for contender in CONTENDERS]
    if OURS not in names or not names <= set(known):
        raise argparse.ArgumentTypeError(f"names {OURS} and any others of {', '.join(known)}; received {text!r}")
    return names


if __name__ == "__main__":
    sys.exit(guarded(main))
