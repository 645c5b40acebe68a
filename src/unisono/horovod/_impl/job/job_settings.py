"""The environment variables that the Horovod interface reads, as values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from unisono.cluster.resolve import environment, resolve
from unisono.cluster.variables import whole_number
from unisono.errors import UsageError

_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True)
class HorovodSettings:
    """The settings of negotiation, fusion and the stall check."""

    fusion_threshold_bytes: int = 128 << 20
    """Tensors are put together up to so many bytes; 0: never."""
    cycle_time_s: float = 1e-3
    """How long a submitted tensor that nobody waits for may stay alone, in the hope of others to travel with."""
    cache_capacity: int = 1024
    """How many agreements are remembered; 0: none."""
    stall_warning_s: float = 60.0
    """After how long a tensor that not all ranks have submitted is reported; 0: never."""
    stall_shutdown_s: float = 0.0
    """After how long it ends the communication; 0: never."""
    dynamic_process_sets: bool = False
    """Whether process sets may be added and removed after `init`."""
    timeline: str = ""
    """The file of rank 0's timeline; DYNAMIC: the program starts and stops it; empty: none."""
    timeline_mark_cycles: bool = False
    """Whether the beginnings of rounds are marked in it."""


def horovod_settings() -> HorovodSettings:
    """Returns the settings of negotiation, fusion and the stall check from the environment of this process. Local."""
    return settings_of(environment())


def get_env_rank_and_size() -> tuple[int, int]:
    """Returns rank and size as the launcher has set them, for programs that ask before `hvd.init()`; (0, 1) without a launcher.
    Local."""
    env = environment()
    if env.get("HOROVOD_RANK") and env.get("HOROVOD_SIZE"):
        return whole_number(env, "HOROVOD_RANK"), whole_number(env, "HOROVOD_SIZE")
    at = resolve(env)
    return at.global_rank, at.world_size


def settings_of(env: Mapping[str, str]) -> HorovodSettings:
    """Returns the settings of negotiation, fusion and the stall check from these variables. Raises `UsageError` for a value that
    makes no sense. Pure."""
    plain = HorovodSettings()
    watched = not _is_switched_on(env, "HOROVOD_STALL_CHECK_DISABLE")
    return HorovodSettings(
        fusion_threshold_bytes=_whole_or(env, "HOROVOD_FUSION_THRESHOLD", plain.fusion_threshold_bytes),
        cycle_time_s=_number_or(env, "HOROVOD_CYCLE_TIME", plain.cycle_time_s * 1e3, "milliseconds") / 1e3,
        cache_capacity=_whole_or(env, "HOROVOD_CACHE_CAPACITY", plain.cache_capacity),
        stall_warning_s=_number_or(env, "HOROVOD_STALL_CHECK_TIME_SECONDS", plain.stall_warning_s, "seconds") if watched else 0.0,
        stall_shutdown_s=_number_or(env, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0.0, "seconds") if watched else 0.0,
        dynamic_process_sets=_is_switched_on(env, "HOROVOD_DYNAMIC_PROCESS_SETS"),
        timeline=env.get("HOROVOD_TIMELINE", ""),
        timeline_mark_cycles=_is_switched_on(env, "HOROVOD_TIMELINE_MARK_CYCLES"),
    )


def _whole_or(env: Mapping[str, str], name: str, otherwise: int) -> int:
    """Returns the whole number in a variable; `otherwise` if it is unset or empty."""
    return whole_number(env, name) if env.get(name) else otherwise


def _number_or(env: Mapping[str, str], name: str, otherwise: float, unit: str) -> float:
    """Returns the number, 0 or more, in a variable; `otherwise` if it is unset or empty. Raises `UsageError` for anything else."""
    if not env.get(name):
        return otherwise
    try:
        value = float(env[name])
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise UsageError(f"{name} must be a number of {unit}, 0 or more; received {env[name]!r} (environment); correct or unset it")
    return value


def _is_switched_on(env: Mapping[str, str], name: str) -> bool:
    """Whether a variable is 1, true, yes or on; False if it is unset or empty. Raises `UsageError` for other words."""
    value = env.get(name, "").lower()
    if value and value not in (*_YES, *_NO):
        raise UsageError(f"{name} must be 1 or 0; received {env[name]!r} (environment); correct or unset it")
    return value in _YES
