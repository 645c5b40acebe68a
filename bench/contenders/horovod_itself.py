"""Horovod itself, where somebody has built it: its last release does not build with the PyTorch of today as it is.

It takes part if the environment `.venv-bench/horovod`, which is made here with what Horovod needs and sees our PyTorch, has it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from bench.contenders.contender import Unavailable
from bench.environments import Environment
from bench.groups import Launch

LIMIT_S = 120.0
ENVIRONMENT = Environment("horovod", ("setuptools", "packaging", "cloudpickle", "psutil", "PyYAML"), sees_main=True)


def find() -> None:
    """Local, blocking: raises `Unavailable` if it is not there or cannot be imported."""
    ENVIRONMENT.make()
    command = [ENVIRONMENT.python, "-c", "import horovod.torch as hvd; assert hvd.gloo_built()"]
    try:
        done = subprocess.run(command, env={**os.environ, **ENVIRONMENT.variables}, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"Horovod was not imported within {LIMIT_S:g} s") from error
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise Unavailable(f"Horovod, built for this PyTorch and with gloo, is not in {ENVIRONMENT.folder.name}: {said}")


def started_by_horovod(program: Sequence[str], num_ranks: int) -> list[Launch]:
    """Ranks that its own launcher starts, over its gloo on this machine."""
    run = [ENVIRONMENT.program("horovodrun"), "-np", str(num_ranks), "--gloo", "--network-interfaces", "lo"]
    return [Launch([ENVIRONMENT.python, *run, ENVIRONMENT.python, "-m", *program], ENVIRONMENT.variables)]
