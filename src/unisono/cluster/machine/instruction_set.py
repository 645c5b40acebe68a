"""Portable mode: caps the instruction set of the libraries, so that CPUs of different generations compute the same bits.

Every library that computes chooses its code by the CPU it finds, and each has a switch of its own: a variable that it reads once,
when it is loaded or first used. Every rank needs them before that (`cap_instruction_set` in `launch/this_process.py`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from unisono.cluster.machine.processor import INTEL, Processor
from unisono.errors import UsageError, unknown_name


@dataclass(frozen=True)
class Setting:
    """One variable, and the package that reads it when it is loaded."""

    variable: str
    value: str
    reader: str = "torch"


def _settings_of_level(aten: str, onednn: str, mkl: str, fbgemm: str, openblas: str, not_in_numpy: str) -> tuple[Setting, ...]:
    """Returns the settings of one level: each library's own name for it. An empty `fbgemm` gives no setting for FBGEMM."""
    return (
        Setting("ATEN_CPU_CAPABILITY", aten),
        Setting("ONEDNN_MAX_CPU_ISA", onednn),
        Setting("MKL_CBWR", mkl),
        *((Setting("FBGEMM_ENABLE_INSTRUCTIONS", fbgemm),) if fbgemm else ()),
        Setting("OPENBLAS_CORETYPE", openblas, "numpy"),
        Setting("NPY_DISABLE_CPU_FEATURES", not_in_numpy, "numpy"),
    )


# NumPy has renamed its features in 2.4, so both names stand here; one that it does not know, or that the CPU lacks, it passes over.
_ABOVE_AVX512 = "AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR"
_ABOVE_AVX2 = f"X86_V4 AVX512F AVX512CD AVX512_SKX {_ABOVE_AVX512}"
_ABOVE_BASELINE = f"X86_V3 AVX F16C FMA3 AVX2 {_ABOVE_AVX2}"

LEVELS: Mapping[str, tuple[Setting, ...]] = MappingProxyType(
    {
        "avx512": _settings_of_level("avx512", "AVX512_CORE", "AVX512", "AVX512", "SkylakeX", _ABOVE_AVX512),
        "avx2": _settings_of_level("avx2", "AVX2", "AVX2", "AVX2", "Haswell", _ABOVE_AVX2),
        "baseline": _settings_of_level("default", "SSE41", "COMPATIBLE", "", "Nehalem", _ABOVE_BASELINE),
    }
)
"""Level, as users type it -> the settings that cap every library at it, the newest instructions first."""

REQUIRED_FEATURES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "avx512": frozenset({"avx2", "fma", "avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"}),
        "avx2": frozenset({"avx2", "fma"}),
        "baseline": frozenset({"sse4_2"}),
    }
)
"""Level -> features that a CPU must have, as Linux calls them."""

FOR_INTEL_ONLY = frozenset({"avx512", "avx2"})
"""Levels whose branch of MKL exists on Intel's CPUs alone; on others MKL silently chooses another branch."""

CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
CUBLAS_WORKSPACES = (":4096:8", ":16:8")
"""Workspaces with which cuBLAS gives the same bits each time, as PyTorch demands; the first is set where none is chosen."""


def settings_of(level: str, cpu: Processor) -> tuple[Setting, ...]:
    """Pure: returns the settings that cap the libraries at a level; refuses a level that is not known or that this CPU does not
    support."""
    if level not in LEVELS:
        raise unknown_name("level", level, LEVELS, "of --portable")
    missing = REQUIRED_FEATURES[level] - cpu.features
    where = f"--portable {level} does not work on this CPU ({cpu.name or cpu.kind or 'of an unknown kind'})"
    possible = [
        name for name in LEVELS if REQUIRED_FEATURES[name] <= cpu.features and (name not in FOR_INTEL_ONLY or cpu.vendor == INTEL)
    ]
    remedy = f"use one of {', '.join(possible)}" if possible else "leave --portable out: its levels are for x86 CPUs"
    if missing:
        raise UsageError(f"{where}, which has no {', '.join(sorted(missing))}; {remedy}")
    if level not in possible:
        raise UsageError(f"{where}, as MKL supports this level on Intel CPUs only; {remedy}")
    return LEVELS[level]


def level_of(env: Mapping[str, str]) -> str | None:
    """Pure: returns the level whose settings are all in an environment; None where there is none."""
    return next((name for name, all_of in LEVELS.items() if all(env.get(one.variable) == one.value for one in all_of)), None)


def current_level() -> str | None:
    """Local: returns the level at which this process was capped; None where it was not."""
    return level_of(os.environ)


def cublas_workspace() -> str | None:
    """Local: returns the setting of the workspace of cuBLAS in the environment; None where there is none."""
    return os.environ.get(CUBLAS_WORKSPACE)
