"""One process of a program of others: `python -m bench.others.stage CHECKOUT OUT NAME plain|moved`."""

from __future__ import annotations

import json
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path

import numpy as np

from bench.others import find
from unisono.cluster.resolve import current_topology
from unisono.errors import UsageError


def main() -> int:
    """Local, blocking: leaves OUT/MODE-RANK.npz, or OUT/refused-RANK.json where Unisono refused it."""
    checkout, out, name, mode = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]
    program, rank = find(name), current_topology().global_rank
    place = out / (mode if program.one_folder else f"{mode}-{rank}")
    place.mkdir(exist_ok=True)
    texts = program.text(checkout, mode == "moved")
    for file, text in list(texts.items())[1:]:
        (place / file).write_text(text)
    os.chdir(place)
    sys.argv = [program.path, *program.arguments]
    sys.path[:0] = [str(place), str((checkout / program.repository / program.path).parent)]
    try:
        found = import_module(f"bench.others.{program.family}").run(program, texts, mode == "moved")
    except (UsageError, AttributeError) as error:
        if isinstance(error, AttributeError) and "unisono/keras" not in traceback.extract_tb(error.__traceback__)[-1].filename:
            raise
        (out / f"refused-{rank}.json").write_text(json.dumps(str(error)))
        print(f"error: {error}", file=sys.stderr)
        return 2
    np.savez(out / f"{mode}-{rank}.npz", **found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
