"""DeepSpeed's all-reduce through shared memory, which it compiles when it is first used."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from bench.contenders.contender import Contender, Unavailable
from bench.environments import Environment
from bench.groups import ROOT, Launch, Seat

HOME = Environment("deepspeed", ("deepspeed",), sees_main=True)
COMPILE_LIMIT_S = 900.0
ADDRESS = "127.0.0.1"


def variables() -> dict[str, str]:
    return {**HOME.variables, "DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": str(HOME.folder / "extensions")}


def segment(rank: int | str) -> Path:
    """How DeepSpeed names a rank's segment: by user, address and port, of which it uses nothing but the name."""
    return Path("/dev/shm") / f"deepspeed_allreduce_buffer_{os.getuid()}_{ADDRESS}_{os.getpid()}_{rank}"


def prepare() -> None:
    if not shutil.which("g++"):
        raise Unavailable("DeepSpeed compiles its operator and needs g++, which is not installed; apt-get install g++")
    HOME.make()
    compile_once = [HOME.python, "-c", "from bench.ranks.deepspeed import load; load()"]
    (HOME.folder / "extensions" / "deepspeed_shm_comm" / "lock").unlink(missing_ok=True)  # of a compilation that was killed
    try:
        done = subprocess.run(
            compile_once,
            cwd=ROOT,
            env={**os.environ, **variables()},
            capture_output=True,
            text=True,
            timeout=COMPILE_LIMIT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"DeepSpeed's operator was not compiled within {COMPILE_LIMIT_S:g} s") from error
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["it printed nothing"]
        raise Unavailable(f"DeepSpeed's operator cannot be compiled or loaded: {last[0]}")


def start(num_ranks: int, seat: Seat) -> list[Launch]:
    environment = {**variables(), "LOCAL_SIZE": str(num_ranks), "MASTER_ADDR": ADDRESS, "MASTER_PORT": str(os.getpid())}
    program = [HOME.python, "-m", "bench.ranks.deepspeed", *seat.arguments]
    return [Launch([*program, str(rank), str(num_ranks), str(segment(rank))], environment) for rank in range(num_ranks)]


def clean() -> None:
    pattern = segment("*")
    for left in pattern.parent.glob(pattern.name):
        left.unlink(missing_ok=True)


CONTENDER = Contender(
    name="deepspeed-shm",
    kind="other",
    about="DeepSpeed's operator `inference_all_reduce_` itself, on a torch tensor",
    start=start,
    prepare=prepare,
    clean=clean,
)
