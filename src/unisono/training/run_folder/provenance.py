"""The provenance of a run: the task and what it imports, the state of its repository, versions and the machine. Plain values."""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import os
import platform
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unisono.cluster.machine.processor import this_processor
from unisono.files.hashes import sha256_of
from unisono.training.run_folder.local_imports import local_imports
from unisono.training.run_folder.repository import repository_state
from unisono.version import __version__

PACKAGES = (
    *("torch", "numpy", "safetensors", "mpi4py", "h5py", "zarr", "nibabel", "tifffile", "scipy", "sklearn"),
    *("lightning", "keras", "tensorflow", "jax"),
)
"""Whose versions matter to a result, besides those that the task itself imports."""


def provenance(
    task_file: Path | None, functions: Mapping[str, Any] | None = None, command: Sequence[str] | None = None
) -> dict[str, Any]:
    """Local, blocking for some tens of milliseconds; call it in the process of a rank, as it may ask for GPUs.

    A task without a file (a notebook's) is recorded by the source of its `functions`, where Python can give it.
    """
    if task_file is None:
        task: dict[str, Any] = {"file": None, "sources": {name: source_of(value) for name, value in (functions or {}).items()}}
        outside: frozenset[str] = frozenset()
    else:
        imported = local_imports(task_file)
        outside = imported.outside
        root = task_file.resolve().parent
        task = {
            "file": str(task_file.resolve()),
            "sha256": sha256_of(task_file),
            "imports": {os.path.relpath(file, root): sha256_of(file) for file in imported.files},
            "unreadable_imports": [os.path.relpath(file, root) for file in imported.unreadable],
            "git": repository_state(root, [task_file.resolve(), *imported.files]),
        }
    return {
        "task": task,
        "command": list(command) if command is not None else None,
        "directory": str(Path.cwd()),
        "versions": versions(outside),
        "machine": machine(),
    }


def sources_of(task: Mapping[str, Any]) -> dict[str, str | None]:
    """Pure: the hashes of everything that defines a task, by file or function, from its entry in `provenance`."""
    if task["file"] is None:
        texts = task["sources"].items()
        return {name: None if text is None else hashlib.sha256(text.encode()).hexdigest() for name, text in texts}
    return {Path(task["file"]).name: task["sha256"], **task["imports"]}


def versions(imported: frozenset[str] = frozenset()) -> dict[str, str]:
    """Local: the versions of Python, Unisono and the packages that are loaded already; nothing is loaded for it."""
    found = {"python": platform.python_version(), "unisono": __version__}
    for name in sorted({*PACKAGES, *imported} - {"unisono", *sys.stdlib_module_names}):
        if name in sys.modules and (version := _version_of_module(name)) is not None:
            found[name] = version
    return found


def machine() -> dict[str, Any]:
    """Local: host, system, CPUs and the GPUs that this process sees (only if PyTorch is loaded)."""
    torch = sys.modules.get("torch")
    gpus = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())] if torch and torch.cuda.is_available() else []
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "host": socket.gethostname(),
        "system": platform.platform(),
        "cpu": this_processor().name or platform.machine(),  # ARM gives no name
        "num_cpus": os.cpu_count(),
        "num_cpus_usable": available,
        "gpus": gpus,
    }


def source_of(value: Any) -> str | None:
    """Local: the source text of a function or class; None where there is none, e.g. for a name or one typed at a prompt."""
    try:
        return inspect.getsource(value)
    except (TypeError, OSError):
        return None


def _version_of_module(name: str) -> str | None:
    """Returns the version of this imported module, or of the package of its name; None if neither is known."""
    version = getattr(sys.modules[name], "__version__", None)
    if version is not None:
        return str(version)
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
