"""Horovod itself, built here from its last release: for PyTorch, with its gloo, without MPI.

As it is, that release does not build with the PyTorch of today, whose headers ask for a newer C++; that number is raised in its
files, and nothing else is changed. CMake and a compiler are needed (Debian: apt-get install cmake g++); it takes minutes, once.
"""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from bench.contenders.contender import Unavailable, run_or_leave
from bench.environments import Environment
from bench.groups import Launch, temporary_folder

LIMIT_S, BUILD_LIMIT_S = 120.0, 3600.0
RELEASE = "horovod==0.28.1"
ENVIRONMENT = Environment("horovod", ("setuptools", "wheel", "packaging", "cloudpickle", "psutil", "PyYAML"), sees_main=True)
FILES, OLD, NEW = ("CMakeLists.txt", "horovod/torch/CMakeLists.txt"), "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 20)"
PARTS = {
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
}


def make() -> None:
    """Local, blocking: build it if it is not there; raises `Unavailable` if it cannot be built or imported."""
    ENVIRONMENT.make()
    stamp = ENVIRONMENT.folder / "horovod built"
    recipe = f"{RELEASE} torch=={version('torch')} {NEW}"
    if not stamp.exists() or stamp.read_text() != recipe:
        with temporary_folder() as folder:
            _build(folder)
    _run([ENVIRONMENT.python, "-c", "import horovod.torch as hvd; assert hvd.gloo_built()"], LIMIT_S, "import")
    stamp.write_text(recipe)


def _build(folder: Path) -> None:
    pip = [ENVIRONMENT.python, "-m", "pip"]
    download = ["download", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", str(folder), RELEASE]
    _run([*pip, *download], BUILD_LIMIT_S, "download")
    (packed,) = folder.glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    source = folder / packed.name.removesuffix(".tar.gz")
    for name in FILES:
        text = (source / name).read_text()
        if OLD not in text:
            raise Unavailable(f"{RELEASE}: {name} does not say {OLD}; this is not the release that the recipe is for")
        (source / name).write_text(text.replace(OLD, NEW))
    _run([*pip, "install", "--no-deps", "--no-build-isolation", "--force-reinstall", str(source)], BUILD_LIMIT_S, "build")


def _run(command: Sequence[str], limit_s: float, what: str) -> None:
    run_or_leave(f"{what} {RELEASE}", command, limit_s, {**ENVIRONMENT.variables, **PARTS})


def started_by_horovod(program: Sequence[str], num_ranks: int) -> list[Launch]:
    """Ranks that its own launcher starts, over its gloo on this machine."""
    run = [ENVIRONMENT.program("horovodrun"), "-np", str(num_ranks), "--gloo", "--network-interfaces", "lo"]
    return [Launch([ENVIRONMENT.python, *run, ENVIRONMENT.python, *program[1:]], ENVIRONMENT.variables)]
