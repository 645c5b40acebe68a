"""The environment of this very process, set before the libraries that read it are loaded."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence

from unisono.cluster.machine.instruction_set import CUBLAS_WORKSPACE, CUBLAS_WORKSPACES, Setting, settings_of
from unisono.cluster.machine.processor import this_processor
from unisono.errors import UsageError


def cap_instruction_set(level: str | None) -> None:
    """Local: caps the libraries of this process at a level of portable mode, under any launcher; None leaves them as they are.

    Call it before PyTorch and NumPy are loaded: they read the variables then. Raises `UsageError` if it is too late, if the
    environment says otherwise or if this CPU cannot keep the level.
    """
    if level is None:
        return
    settings = settings_of(level, this_processor())
    refuse_contradictions(settings, os.environ)
    late = [one for one in settings if one.variable not in os.environ]
    if readers := sorted({one.reader for one in late if one.reader in sys.modules}):
        line = " ".join(shlex.quote(f"{one.variable}={one.value}") for one in settings)
        raise UsageError(
            f"--portable {level} comes too late: {' and '.join(readers)} {'is' if len(readers) == 1 else 'are'} already loaded in "
            "this process and chose the instructions while loading; use `unisono train`, which sets the variables first, or start "
            f"this program with: env {line}"
        )
    os.environ.update({one.variable: one.value for one in late})


def prepare_cublas() -> None:
    """Local: gives cuBLAS a workspace with which it repeats its bits, unless one is chosen. Call it before a GPU is first used."""
    os.environ.setdefault(CUBLAS_WORKSPACE, CUBLAS_WORKSPACES[0])


def refuse_contradictions(settings: Sequence[Setting], env: Mapping[str, str]) -> None:
    """Raises `UsageError` if variables of the environment contradict the settings."""
    for one in settings:
        if env.get(one.variable, one.value) != one.value:
            raise UsageError(
                f"--portable needs {one.variable}={one.value}, but it is {env[one.variable]!r} (environment); unset it, or leave "
                "--portable out"
            )
