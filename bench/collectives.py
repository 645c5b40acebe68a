"""All-reduce of float32 vectors on this machine: Unisono's shared memory against gloo, Open MPI, MPICH, Intel MPI and DeepSpeed,
interleaved in one run. What they need is installed under .venv-bench/.

    python -m bench.collectives              # everything; about a quarter of an hour on two cores that do nothing else
    python -m bench.collectives --quick      # a look whether it works: few calls, no judgement
    python -m bench.collectives --ranks 2 --sizes 4KB,1MiB --only unisono-shm,gloo --out runs/look

Writes collectives.md (tables, bounds, how it was measured), collectives.json (every call) and collectives.png.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys

from bench.blocks import FULL, QUICK, about_sizes, measure_blocks, prepare
from bench.collectives_page import page_of
from bench.contenders import deepspeed_shm, gloo, memory_floor, mpi, unisono_shm
from bench.measurement import begin, guarded
from bench.options import add_sizes, counts, parse, parser_of, sizes, some_of

CONTENDERS = (
    unisono_shm.CONTENDER,
    unisono_shm.AGAIN,
    unisono_shm.PLAIN,
    gloo.CONTENDER,
    *mpi.CONTENDERS,
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
    measurement = begin("collectives", args, page_of)
    effort = QUICK if args.quick else FULL
    contenders, absent = prepare([one for one in CONTENDERS if one.name in args.only], measurement.progress)
    record = measurement.record({"effort": dataclasses.asdict(effort), "contenders": [one.name for one in contenders]})
    blocks = {num_ranks: about_sizes(num_ranks, args.sizes) for num_ranks in args.ranks}
    for num_ranks, about in blocks.items():
        measure_blocks(record, contenders, num_ranks, about, effort, measurement.progress, essential=(OURS,))
    measurement.finish(
        ours=OURS,
        contenders={one.name: {"kind": one.kind, "about": one.about} for one in contenders},
        absent=absent,
        not_measured=NOT_MEASURED,
        blocks={key: record.blocks[key] for about in blocks.values() for key in about},
    )


def _arguments() -> argparse.Namespace:
    parser, names = parser_of("collectives", __doc__), [one.name for one in CONTENDERS]
    parser.add_argument("--ranks", type=counts, default=[2, 4], metavar="N,N", help="numbers of ranks (default 2,4)")
    parser.add_argument("--only", type=some_of(names, ",", (OURS,)), default=names, metavar="NAME,NAME", help=", ".join(names))
    add_sizes(parser, SIZES, QUICK_SIZES)
    args = parse(parser)
    args.sizes = args.sizes or sizes(QUICK_SIZES if args.quick else SIZES)
    return args


if __name__ == "__main__":
    sys.exit(guarded(main))
