"""`unisono run` begun and ended in every way, at any moment, many times: it ends in time and leaves nothing."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ranks.launching import SHORT_S, Launcher, Script

pytestmark = pytest.mark.soak

LONGEST_LIFE_S = 1.0
BODIES = {
    "finish": "pid()",
    "fail": "pid(); sys.exit(3 if rank == 0 else 0)",
    "stay": "pid(); wait_for_ever()",
    "deaf": "for s in (signal.SIGINT, signal.SIGTERM): signal.signal(s, signal.SIG_IGN)\npid(); wait_for_ever()",
    "talk": "pid()\nwhile True: print('x' * 1000, flush=True)",
    "family": "child = subprocess.Popen(['sleep', '1000']); pid(); wait_for_ever()",
}
ENDINGS = {
    "by itself": (),
    "interrupt": (signal.SIGINT,),
    "interrupt twice": (signal.SIGINT, signal.SIGINT),
    "terminate": (signal.SIGTERM,),
    "hang up": (signal.SIGHUP,),
    "kill": (signal.SIGKILL,),
}


def endings_of(body: str) -> list[str]:
    """How a run of it can end at all: who is deaf only ends by force."""
    if body in ("finish", "fail"):
        return list(ENDINGS)
    return ["interrupt twice", "kill"] if body == "deaf" else [name for name in ENDINGS if name != "by itself"]


def test_any_end_at_any_moment(seeds: Iterator[int], tmp_path: Path, nothing_left: Callable[[], None]) -> None:
    for seed in seeds:
        draw = random.Random(seed)
        body = draw.choice(sorted(BODIES))
        ending = draw.choice(endings_of(body))
        options = ["-n", str(draw.randint(1, 6)), "--on-failure", draw.choice(("end", "continue", "restart"))]
        print(f"{body}, ended by {ending}, {options}", flush=True)
        script = Script(tmp_path / f"{seed}.py")
        with Launcher(*options, script(BODIES[body]), grace_s=SHORT_S) as launcher:
            launcher.reading()
            for signum in ENDINGS[ending]:
                time.sleep(draw.uniform(0, LONGEST_LIFE_S))
                if launcher.process.poll() is None:
                    # The terminal tells the whole group, a scheduler the launcher alone.
                    (os.killpg if draw.random() < 0.5 else os.kill)(launcher.process.pid, signum)
            code = launcher.finish()
            if not ENDINGS[ending]:
                assert code == (3 if body == "fail" else 0), launcher.shown()[-3000:]
            elif body not in ("finish", "fail"):
                assert code != 0, launcher.shown()[-3000:]
            if "] pid " in launcher.shown():  # before, Python itself may be interrupted and say so
                assert not any(line.startswith("Traceback") for line in launcher.printed("err")), launcher.shown()[-3000:]
        nothing_left()
