"""The program that plays the plan of a seed: `python -m tests.soak.play SEED`, under any launcher or with ranks as threads."""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import sys
from pathlib import Path
from time import time

from tests.soak.player import Broken, Player
from unisono.cluster.topology import ALLREDUCES
from unisono.comm.base import Communicator
from unisono.comm.connect import connect
from unisono.testing.thread_communicator import run_threads

TIME_LIMIT_S = 60.0
STUCK_S = 240.0
"""Longer, and not even the time limit of a call has ended it."""
UNTIL_KILLED = 10**9


def main() -> int:
    """Collective over the job, blocking. 0 if all was as numpy has it; otherwise says what was not, in which step of which seed."""
    args = _arguments()
    faulthandler.dump_traceback_later(STUCK_S, exit=args.folder is None)
    try:
        if args.threads:
            run_threads(args.threads, lambda comm: Player(comm, args.seed).play(args.scenes), TIME_LIMIT_S)
        else:
            _play(args.seed, args.scenes, args.folder)
    except Broken as broken:
        print(f"\n{broken}", file=sys.stderr, flush=True)
        return 1
    finally:
        faulthandler.cancel_dump_traceback_later()
    print("all as numpy has it", flush=True)
    return 0


def _play(seed: int, num_scenes: int, folder: Path | None) -> None:
    allreduce = random.Random(seed).choice(ALLREDUCES)
    with connect(allreduce=allreduce, time_limit_s=TIME_LIMIT_S) as comm:
        if folder is None:
            Player(comm, seed).play(num_scenes)
            return
        record(folder, f"pid-{comm.rank}", pid=os.getpid())
        try:
            Player(comm, seed).play(UNTIL_KILLED)
        except Broken as broken:
            _record_end(folder, comm, broken)
            raise


def _record_end(folder: Path, comm: Communicator, broken: Broken) -> None:
    named = [broken.members[r] for r in getattr(broken.cause, "ranks", ())]
    members = list(broken.members)
    record(folder, f"rank-{comm.rank}", at=time(), kind=type(broken.cause).__name__, named=named, members=members, text=str(broken))


def record(folder: Path, name: str, **facts: object) -> None:
    """As one act: whoever looks finds nothing or everything."""
    unfinished = folder / f".{name}"
    unfinished.write_text(json.dumps(facts))
    unfinished.rename(folder / f"{name}.json")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.play", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--scenes", type=int, default=1000)
    parser.add_argument(
        "--threads", type=int, default=0, metavar="N", help="N ranks as threads of this process, without a launcher"
    )
    parser.add_argument("--folder", type=Path, help="play until a rank is killed; who is left writes there what it was told")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
