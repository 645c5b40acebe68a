"""`unisono join`: adds a worker to a run whose workers may join and leave."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from unisono.launch.lasting_import import import_to_stay

DESCRIPTION = """Adds a worker to a run whose workers may join, leave and die (unisono train --elastic). The run directory has the
address and the key of the server; only its owner can read the key. On Ctrl-C this worker finishes its current batches and leaves;
the others continue."""
EPILOG = """examples:
  unisono train task.py --elastic 4 --algorithm gem --out runs/a       a server and four workers
  unisono join runs/a                                                  a fifth one, at any time
  srun -n 8 unisono join runs/a                                        eight more, on other nodes that see the directory
exit codes: 0 the training is over, or this worker left; 1 failed; 2 a mistake in the command"""

LONG_S = 600.0
"""How long a worker that was started with its server waits for it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Local: adds the options of the verb."""
    parser.add_argument("run", metavar="RUN", type=Path, help="the run directory")
    parser.add_argument("--threads", type=int, metavar="T", help="threads of this worker (default: all CPUs)")
    parser.add_argument(
        "--device", default="auto", metavar="D", help="device of this worker: auto (default), cpu, cuda or cuda:NUMBER"
    )
    parser.add_argument("--wait", type=float, default=0.0, metavar="S", help="seconds to wait for the server to start (default 0)")


def main(args: argparse.Namespace, argv: Sequence[str] = ()) -> int:  # noqa: ARG001 - as every verb is called
    """Local, blocking: joins a run as a worker; returns the exit code."""
    return be_worker(args.run, args.threads, args.device, args.wait)


def be_worker(run: Path, threads: int | None, device: str, wait_s: float, as_rank: bool = False) -> int:
    """Local, blocking: works until the training is over. `as_rank`: it was started with its server, and prints only warnings."""
    import_to_stay("unisono.training.server.joining")
    from unisono.training.server.joining import join

    def say(text: str) -> None:
        if not as_rank or text.startswith("warning"):
            print(text, file=sys.stderr, flush=True)

    num_done = join(run, say=say, threads=threads, device=device, wait_s=wait_s)
    if not as_rank:
        print(f"{num_done} batches done for {run}")
    return 0
