"""The messages of `hvd.init()` on rank 0: which HOROVOD_* variables have no effect here and, if asked for, what was chosen."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from time import strftime

from unisono.cluster.resolve import environment
from unisono.errors import UsageError

LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")
DEFAULT_LEVEL = "WARNING"

READ = re.compile(
    "HOROVOD_(FUSION_THRESHOLD|CYCLE_TIME|CACHE_CAPACITY|DYNAMIC_PROCESS_SETS|STALL_CHECK_(DISABLE|TIME_SECONDS)"
    "|STALL_SHUTDOWN_TIME_SECONDS|TIMELINE(_MARK_CYCLES)?|LOG_(LEVEL|HIDE_TIME)|ELASTIC(_TIMEOUT)?|START_TIMEOUT"
    "|RANK|SIZE|(LOCAL|CROSS)_(RANK|SIZE)|HOSTNAME|CONTROLLER|CPU_OPERATIONS)"
)
"""Variables that somebody reads here, or that our launchers set for programs."""
REASONS: Mapping[str, str] = {
    "AUTOTUNE(_.*)?": "there is no autotuning; set HOROVOD_FUSION_THRESHOLD and HOROVOD_CYCLE_TIME",
    "(HIERARCHICAL|TORUS)_.*": "the all-reduce is chosen by message size and number of nodes (UNISONO_ALLREDUCE)",
    ".*NCCL.*|BATCH_D2D_MEMCOPIES|ENABLE_ASYNC_COMPLETION|DISABLE_NVTX_RANGES|GPU_.*|ENABLE_XLA_OPS": "GPU tensors pass "
    "through the host",
    "WITH_.*|WITHOUT_.*|BUILD_.*|.*_HOME|CMAKE|MPICXX_SHOW|ALLOW_MIXED_GPU_IMPL": "nothing is compiled",
    "GLOO_.*|MPI_.*|CCL_.*|THREAD_AFFINITY|SPARK_.*|NUM_RANKS|ADASUM_MPI_CHUNK_SIZE|DISABLE_GROUP_FUSION": "Unisono has no such "
    "component",
}
"""By what follows HOROVOD_ -> why it changes nothing."""


def report_settings(chosen: str) -> None:
    """Prints which HOROVOD_* variables have no effect and, with HOROVOD_LOG_LEVEL=INFO, `chosen`, which describes the job; called
    on one rank, once. Local."""
    env = environment()
    level = env.get("HOROVOD_LOG_LEVEL", "").upper() or DEFAULT_LEVEL
    if level not in LEVELS:
        raise UsageError(
            f"HOROVOD_LOG_LEVEL must be one of {', '.join(LEVELS)}; received {level!r} (environment); correct or unset it"
        )
    time = "" if env.get("HOROVOD_LOG_HIDE_TIME", "0") not in ("0", "") else strftime("%Y-%m-%d %H:%M:%S ")
    for of, text in (("WARNING", without_effect(env)), ("INFO", chosen)):
        if text and LEVELS.index(of) >= LEVELS.index(level):
            print(f"{time}horovod {of.lower()}: {text}", file=sys.stderr, flush=True)


def without_effect(env: Mapping[str, str]) -> str:
    """Returns a line about variables that are set and have no effect; empty if there are none. Pure."""
    found = [name for name in sorted(env) if name.startswith("HOROVOD_") and env[name] and not READ.fullmatch(name)]
    alike: dict[str, list[str]] = {}
    for name in found:
        alike.setdefault(_reason_without_effect(name), []).append(name)
    told = [f"{', '.join(names)} ({reason})" for reason, names in alike.items()]
    return f"these variables have no effect here: {', '.join(told)}" if told else ""


def _reason_without_effect(name: str) -> str:
    """Returns why a HOROVOD_* variable changes nothing here; "unknown" for one that Horovod does not have either."""
    rest = name.removeprefix("HOROVOD_")
    return next((reason for pattern, reason in REASONS.items() if re.fullmatch(pattern, rest)), "unknown")
