"""Two jobs on one node at the same time, again and again: each finds its own members, at the same port too."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.system.ports import free_port
from tests.system.processes import plain_environment, run_together

pytestmark = pytest.mark.soak

ROOT = Path(__file__).resolve().parents[2]
UNISONO = str(Path(sys.executable).with_name("unisono"))
PROGRAM = str(ROOT / "tests" / "ranks" / "programs" / "two_jobs.py")
LIMIT_S = 90.0


def test_two_jobs_do_not_meet(seeds: Iterator[int], tmp_path: Path, nothing_left: Callable[[], None]) -> None:
    for seed in seeds:
        draw = random.Random(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        place = ["--rendezvous", f"127.0.0.1:{free_port()}"] if draw.random() < 0.7 else []
        names, sizes = ("left", "right"), (draw.randint(1, 4), draw.randint(1, 4))
        commands = [
            [
                UNISONO,
                "run",
                "-n",
                str(size),
                *place,
                "--engine",
                draw.choice(("auto", "shm", "gloo")),
                PROGRAM,
                name,
                other,
                str(folder),
            ]
            for size, name, other in zip(sizes, names, names[::-1], strict=True)
        ]
        for name, size, outcome in zip(names, sizes, run_together(commands, plain_environment(), LIMIT_S), strict=True):
            assert outcome.code == 0, str(outcome)
            met = sorted(re.findall(rf"{name} \d met .*", outcome.output))
            assert met == [f"{name} {rank} met {' '.join([name] * size)}" for rank in range(size)], str(outcome)
        nothing_left()
