"""Where the all-reduce algorithms cross: gloo's own, ring, recursive doubling and Rabenseifner between hosts at 1 Gbit/s, one rank
on each of several test hosts (network namespaces of this machine), interleaved in one run. Needs root, ip and tc.

    python -m bench.algorithms               # 4 and 3 hosts, 1 KiB to 16 MiB
    python -m bench.algorithms --quick       # a look whether it works
    python -m bench.algorithms --hosts 4 --sizes 32KiB,64KiB,128KiB --out runs/look

Writes algorithms.md (tables, crossings, thresholds for `auto`), algorithms.json (every call) and algorithms.png.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from functools import partial

from bench.algorithms_page import page_of
from bench.blocks import QUICK, Effort, about_sizes, measure_blocks
from bench.contenders.contender import Contender
from bench.groups import Launch, Seat
from bench.hosts import LIMITS, Across, test_hosts
from bench.measurement import begin, guarded
from bench.options import add_sizes, counts, parse, parser_of, sizes

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
    measurement = begin("algorithms", args, page_of)
    effort = QUICK if args.quick else FULL
    record = measurement.record({"effort": dataclasses.asdict(effort), "contenders": list(ALGORITHMS)})
    blocks = {num_hosts: about_sizes(num_hosts, args.sizes) for num_hosts in args.hosts}
    for num_hosts, about in blocks.items():
        with test_hosts(num_hosts) as hosts:
            across = Across(hosts)
            contenders = [Contender(name, "ours", text, partial(start, across, name)) for name, text in ALGORITHMS.items()]
            measure_blocks(record, contenders, num_hosts, about, effort, measurement.progress, essential=tuple(ALGORITHMS))
    measurement.finish(
        contenders=ALGORITHMS,
        not_measured=NOT_MEASURED,
        blocks={key: record.blocks[key] for about in blocks.values() for key in about},
    )


def start(across: Across, name: str, num_ranks: int, seat: Seat) -> list[Launch]:  # noqa: ARG001 -- as many as hosts
    """Local: one rank on each host, with the algorithm of that name."""
    return across.launches(name.partition(" ")[0], "bench.ranks.unisono", seat, "plain")


def _arguments() -> argparse.Namespace:
    parser = parser_of("algorithms", __doc__)
    parser.add_argument("--hosts", type=counts, default=[4, 3], metavar="N,N", help="numbers of hosts (default 4,3)")
    add_sizes(parser, SIZES, QUICK_SIZES)
    args = parse(parser)
    args.sizes = args.sizes or sizes(QUICK_SIZES if args.quick else SIZES)
    return args


if __name__ == "__main__":
    sys.exit(guarded(main))
