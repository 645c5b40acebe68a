"""Where the all-reduce algorithms cross: gloo's own, ring, recursive doubling and Rabenseifner between hosts at 1 Gbit/s.

    python -m bench.algorithms               # everything; only as root, as it makes network namespaces
    python -m bench.algorithms --quick       # a look whether it works

Writes algorithms.md (tables, crossings, thresholds for `auto`), algorithms.json (every call) and algorithms.png.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from functools import partial

from bench.algorithms_page import publish
from bench.blocks import QUICK, Effort, blocks_of, measure_blocks
from bench.contenders.contender import Contender
from bench.groups import Launch, Seat
from bench.hosts import LIMITS, Across, test_hosts
from bench.options import add_sizes, counts, parse, sizes
from bench.progress import Progress
from bench.rounds import Stopwatch
from bench.session import guarded, open_record, result_of

SIZES = "1KiB,4KiB,16KiB,64KiB,128KiB,256KiB,1MiB,4MiB,16MiB"
QUICK_SIZES = "1KiB,256KiB"
FULL = Effort(short_bytes=1 << 20, short_rounds=60, short_calls=5, long_rounds=20, long_calls=2)

ALGORITHMS = {
    "engine": "gloo's own",
    "engine A/A": "the same again in other processes: its distance from it is the noise",
    "ring": "comm/allreduce/ring.py over gloo's messages",
    "recursive_doubling": "comm/allreduce/recursive_doubling.py over gloo's messages",
    "rabenseifner": "comm/allreduce/rabenseifner.py over gloo's messages",
}

NOT_MEASURED = (
    LIMITS,
    "Other engines between the hosts than gloo, faster networks, more hosts than 4, several ranks on a host (node_aware).",
)


def main() -> None:
    """Local, blocking: measure what is asked for and publish it."""
    args = _arguments()
    if args.figure:
        print(publish(json.loads((args.out / "algorithms.json").read_text()), args.out))
        return
    progress, watch = Progress(), Stopwatch()
    effort = QUICK if args.quick else FULL
    record = open_record("algorithms", args, {"effort": dataclasses.asdict(effort), "contenders": list(ALGORITHMS)}, progress)
    for num_hosts in args.hosts:
        with test_hosts(num_hosts) as hosts:
            across = Across(hosts)
            contenders = [Contender(name, "ours", about, partial(start, across, name)) for name, about in ALGORITHMS.items()]
            measure_blocks(record, contenders, num_hosts, args.sizes, effort, progress, essential=tuple(ALGORITHMS))
    result = result_of(
        args,
        record,
        watch,
        algorithms=ALGORITHMS,
        not_measured=NOT_MEASURED,
        blocks=blocks_of(record, args.hosts, args.sizes),
    )
    print(publish(result, args.out))
    record.finish()
    progress.keep(f"written to {args.out}/algorithms.md, .json and .png after {watch}")


def start(across: Across, name: str, num_ranks: int, seat: Seat) -> list[Launch]:  # noqa: ARG001 -- as many as hosts
    """Local: one rank on each host, with the algorithm of that name."""
    return across.launches(name.partition(" ")[0], "bench.ranks.unisono", seat, "plain")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.algorithms",
        description="The all-reduce algorithms against each other, one rank on each of several test hosts (network namespaces\n"
        "of this machine with links of 1 Gbit/s), interleaved in one run. Needs root, ip and tc.",
        epilog="examples:\n"
        "  python -m bench.algorithms                          4 and 3 hosts, 1 KiB to 16 MiB, into docs/results/\n"
        "  python -m bench.algorithms --quick                  a few calls at two sizes, into runs/bench/\n"
        "  python -m bench.algorithms --hosts 4 --sizes 32KiB,64KiB,128KiB --out runs/look\n"
        "  python -m bench.algorithms --figure                 page and figure again from docs/results/algorithms.json\n"
        "An interrupted run goes on where it stopped when the same command is given again.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--hosts", type=counts, default=[4, 3], metavar="N,N", help="numbers of hosts (default 4,3)")
    add_sizes(parser, SIZES, QUICK_SIZES)
    args = parse(parser)
    args.sizes = args.sizes or sizes(QUICK_SIZES if args.quick else SIZES)
    return args


if __name__ == "__main__":
    sys.exit(guarded(main))
