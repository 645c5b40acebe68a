"""Determinism: the conditions that make a training reproducible bit for bit: set for it, recorded with it, compared when it
resumes.

PyTorch gives the same bits again for the same program, inputs and number of threads, if its kernels are deterministic, its
arithmetic is not rounded for speed, and libraries and CPU are those that they were.
"""

from __future__ import annotations

import hashlib
import math
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from unisono.cluster.machine.instruction_set import CUBLAS_WORKSPACE, CUBLAS_WORKSPACES, cublas_workspace, current_level
from unisono.cluster.machine.processor import this_processor
from unisono.comm.base import Communicator
from unisono.errors import UsageError


@dataclass(frozen=True)
class Switch:
    """One setting of this process that decides bits, and the value that determinism needs."""

    read: Callable[[], Any]
    write: Callable[[Any], object]
    needed: Any


def _precision_switch(part: Any) -> Switch:
    """Returns the switch of this backend's `fp32_precision`, which must be "ieee" (no TF32)."""
    return Switch(lambda: part.fp32_precision, lambda value: setattr(part, "fp32_precision", value), "ieee")


def _attribute_switch(part: Any, name: str, needed: Any) -> Switch:
    """Returns the switch that reads and sets this attribute of `part`, and the value that determinism needs."""
    return Switch(lambda: getattr(part, name), lambda value: setattr(part, name, value), needed)


def _flushes_denormals() -> bool:
    """Local: whether numbers near zero become zero in this thread; a library built for speed may switch it on when it is loaded."""
    return bool((torch.full((1,), 2.0**-1060, dtype=torch.float64) * 1.0).item() == 0)


BACKENDS: Any = torch.backends
"""Their attributes are made at run time, so the type checker does not know them."""

SWITCHES: Mapping[str, Switch] = {
    "deterministic_algorithms": Switch(torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 2),
    # It would write NaN into all new memory, which takes time and decides no bit of a program that reads only what it has written.
    "fill_uninitialized_memory": _attribute_switch(torch.utils.deterministic, "fill_uninitialized_memory", False),
    "cudnn_deterministic": _attribute_switch(BACKENDS.cudnn, "deterministic", True),
    "cudnn_benchmark": _attribute_switch(BACKENDS.cudnn, "benchmark", False),
    "flush_denormals": Switch(_flushes_denormals, torch.set_flush_denormal, False),
    "cuda_matmul_precision": _precision_switch(BACKENDS.cuda.matmul),
    "cudnn_conv_precision": _precision_switch(BACKENDS.cudnn.conv),
    "cudnn_rnn_precision": _precision_switch(BACKENDS.cudnn.rnn),
    "onednn_matmul_precision": _precision_switch(BACKENDS.mkldnn.matmul),
    "onednn_conv_precision": _precision_switch(BACKENDS.mkldnn.conv),
    "onednn_rnn_precision": _precision_switch(BACKENDS.mkldnn.rnn),
}


@contextmanager
def set_switches(device: torch.device) -> Iterator[None]:
    """Context manager, local: sets `SWITCHES` so that PyTorch computes reproducibly; afterwards this process is as it was.

    Raises `UsageError` where the environment of this process prevents that on a GPU.
    """
    if device.type == "cuda" and cublas_workspace() not in CUBLAS_WORKSPACES:
        raise UsageError(
            f"with --shards the environment variable {CUBLAS_WORKSPACE} must be {' or '.join(CUBLAS_WORKSPACES)}; it is "
            f"{cublas_workspace() or 'not set'}. Set it before Python starts"
        )
    before = {name: switch.read() for name, switch in SWITCHES.items()}
    try:
        for switch in SWITCHES.values():
            switch.write(switch.needed)
        yield
    finally:
        for name, switch in SWITCHES.items():
            switch.write(before[name])


@contextmanager
def explain_errors() -> Iterator[None]:
    """Context manager, local: turns PyTorch's error about an operation without a deterministic version into one that names the
    remedy."""
    try:
        yield
    except RuntimeError as error:
        if named := re.match(r"(\S+) does not have a deterministic implementation", str(error)):
            raise UsageError(
                f"{named[1]}, which the model or the loss of the task uses, has no deterministic version in PyTorch "
                f"{torch.__version__}, and --shards needs one; use another operation, or leave --shards out"
            ) from error
        raise


@contextmanager
def explain_full_gpu() -> Iterator[None]:
    """Context manager, local: turns PyTorch's error about a GPU without memory into one that names the remedy."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        first = str(error).partition(". ")[0].strip()
        raise UsageError(
            f"the GPU is full ({first}); use a smaller --global-batch, --accumulate, --precision bf16 or --resident off; "
            "a checkpoint, if there is one, is resumed by the same command with --accept-changes"
        ) from error


@contextmanager
def enforce(device: torch.device) -> Iterator[None]:
    """Context manager, local: makes PyTorch compute reproducibly, and explains errors of operations that cannot."""
    with set_switches(device), explain_errors():
        yield


def conditions(device: torch.device) -> dict[str, Any]:
    """Local: the conditions in this process that decide the bits of a training, in plain values."""
    cpu = this_processor()
    found = {
        "torch": str(torch.__version__),
        **_libraries(torch.__config__.show()),
        "numpy": sys.modules["numpy"].__version__ if "numpy" in sys.modules else None,
        "libm": " ".join(platform.libc_ver()).strip() or platform.platform(),
        "threads": torch.get_num_threads(),
        "portable": current_level(),
        "cpu": cpu.kind,
        "cpu_name": cpu.name,
        "cpu_vendor": cpu.vendor,
        "cpu_has_fma": "fma" in cpu.features,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "rounding": _rounding_mode(),
        **{name: switch.read() for name, switch in SWITCHES.items()},
        "device": device.type,
    }
    if device.type == "cuda":
        found |= {
            "gpu": torch.cuda.get_device_name(device),
            "gpu_capability": ".".join(map(str, torch.cuda.get_device_capability(device))),
            "cuda": torch.version.cuda,
            "cudnn": BACKENDS.cudnn.version(),
            "cublas_workspace": cublas_workspace(),
        }
    return found


def describe_mixed_ranks(comm: Communicator, device: torch.device) -> list[str]:
    """Collective: a warning for each condition in which ranks differ so that they round differently, e.g. CPUs of several
    generations."""
    first, *others = comm.allgather_object(conditions(device))
    return [
        f"warning: the ranks differ: {one}; with another number of workers the bits may differ"
        for rank, other in enumerate(others, 1)
        for one in describe_changes(first, other, ("on rank 0", f"on rank {rank}"))
    ]


def _libraries(told: str) -> dict[str, str | None]:
    """Pure: versions of libraries from PyTorch's description of its build, and a hash of all of it, since builds of one version
    differ."""
    lines = [line.strip(" -") for line in told.splitlines() if "CPU capability" not in line]
    mkl = re.search(r"Math Kernel Library Version (\S+)", told)
    onednn = re.search(r"MKL-DNN v(\S+)", told)
    blas = re.search(r"BLAS_INFO=(\w+)", told)
    return {
        "torch_build": hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16],
        "blas": blas and blas[1],
        "mkl": mkl and mkl[1],
        "onednn": onednn and onednn[1],
    }


def _rounding_mode() -> str:
    """Local: the rounding mode of this thread, which some libraries leave changed."""
    half, more = math.ldexp(1.0, -53), math.ldexp(1.5, -53)
    return "nearest" if 1.0 + half == 1.0 and 1.0 + more > 1.0 else "not to nearest"


DESCRIPTIONS: Mapping[str, str] = {
    "torch": "PyTorch",
    "torch_build": "the build of PyTorch",
    "blas": "the BLAS of PyTorch",
    "mkl": "MKL",
    "onednn": "oneDNN",
    "numpy": "NumPy",
    "libm": "the C library",
    "threads": "threads of each worker",
    "portable": "--portable",
    "cpu": "the CPU",
    "cpu_vendor": "the maker of the CPU",
    "cpu_has_fma": "whether the CPU has FMA",
    "cpu_capability": "the instructions that PyTorch uses",
    "rounding": "rounding",
    "device": "the kind of device",
    "gpu": "the GPU",
    "gpu_capability": "the capability of the GPU",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "cublas_workspace": CUBLAS_WORKSPACE,
    **{name: name.replace("_", " ") for name in SWITCHES},
}
"""Condition that changes bits where it differs -> its description in messages."""


def describe_changes(there: Mapping[str, Any], here: Mapping[str, Any], words: tuple[str, str] = ("before", "now")) -> list[str]:
    """Pure: a sentence for each difference between two `conditions` that changes bits; empty if none does. `words` say which value
    is whose: "PyTorch 2.9.0 before, 2.10.0 now".

    A condition that one of them lacks is not compared. At the same level of portable mode the model of the CPU does not
    count, but its maker, as instructions that approximate (rsqrtps) are each maker's own and roots of MKL are not exact at the
    lowest level, and FMA, which the C library uses wherever it is there.
    """
    capped = there.get("portable") is not None and there.get("portable") == here.get("portable")
    aside = {"cpu"} if capped else {"cpu_vendor", "cpu_has_fma"}
    different = [
        name
        for name in DESCRIPTIONS
        if name not in aside
        and name in there
        and name in here
        and there[name] != here[name]
        and (name == "portable" or None not in (there[name], here[name]))
    ]
    if {"torch", "blas", "mkl", "onednn"} & set(different):
        different = [name for name in different if name != "torch_build"]
    return [
        f"{DESCRIPTIONS[name]} {_value_text(name, there)} {words[0]}, {_value_text(name, here)} {words[1]}" for name in different
    ]


def _value_text(name: str, of: Mapping[str, Any]) -> str:
    """Returns this value of the environment as a message shows it; "not given" for None."""
    if name == "cpu" and of.get("cpu_name"):
        return f"{of['cpu_name']} ({of['cpu']})"
    return "not given" if of[name] is None else str(of[name])
