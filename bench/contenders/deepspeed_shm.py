"""DeepSpeed's all-reduce through shared memory, which it compiles when it is first used."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from bench.contenders.contender import Contender, Unavailable, run_or_leave
from bench.environments import Environment
from bench.groups import Launch, RankSlot

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
    run_or_leave("compile or load DeepSpeed's operator", compile_once, COMPILE_LIMIT_S, variables())


def start(num_ranks: int, slot: RankSlot) -> list[Launch]:
    environment = {**variables(), "LOCAL_SIZE": str(num_ranks), "MASTER_ADDR": ADDRESS, "MASTER_PORT": str(os.getpid())}
    program = slot.program("deepspeed", python=HOME.python)
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
