"""A copy of examples/lectures in which programs run as users run them; and the lectures' own code, where it is at hand."""

from __future__ import annotations

import gzip
import re
import shlex
import shutil
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from tests.system.fork_server import ForkServer
from tests.system.processes import Outcome, Program, plain_environment
from unisono.data.sources.digits import raw_digits

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "lectures"
LECTURES = ROOT.parent / "shared" / "reference" / "lectures"
LIMIT_S = 280.0
MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}
"""What mpirun asks for in a container with few CPUs."""

Rules: TypeAlias = Sequence[tuple[str, str]]
"""Patterns and replacements, applied in this order."""


class Workplace:
    """A folder with the programs, where `unisono` and `python` are on PATH. Keras computes with torch unless told otherwise.

    `python` lets a program on a backend with a fork server begin there, where Keras is loaded already."""

    def __init__(self, place: Path, servers: Mapping[str, ForkServer]) -> None:
        self.place = place / "here"
        shutil.copytree(FOLDER, self.place, ignore=shutil.ignore_patterns("__pycache__", "runs"))
        commands = place / "bin"
        commands.mkdir()
        cases = [f'{name}:*.py) exec {shlex.join(server.stand_in([]))} "$@";;' for name, server in servers.items()]
        forked = f'case "$KERAS_BACKEND:$1" in {" ".join(cases)} esac\n'
        for name, before, words in (("unisono", "", "-m unisono"), ("python", forked, "")):
            (commands / name).write_text(f'#!/bin/sh\n{before}exec "{sys.executable}" {words} "$@"\n')
            (commands / name).chmod(0o755)
        known = plain_environment()
        path = f"{commands}:{Path(sys.executable).parent}:{known['PATH']}"
        usual = {"OMP_NUM_THREADS": "1", **known}
        self.environment: dict[str, str] = {**usual, **MPI, "PATH": path, "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "torch"}

    def run(self, folder: str, *command: str, more: Mapping[str, str] | None = None, code: int = 0) -> Outcome:
        """Blocking: a command in a folder, to its end, with this exit code."""
        inside = ["env", "--chdir", str(self.place / folder), *command]
        with Program(inside, {**self.environment, **(more or {})}) as program:
            outcome = program.finish(LIMIT_S)
        assert outcome.code == code, str(outcome)
        return outcome

    def by_horovodrun(self, file: str, *arguments: str, backend: str = "torch") -> Outcome:
        """Blocking: a program written for Horovod on two workers."""
        folder, name = file.split("/")
        command = ("unisono", "horovodrun", "-np", "2", "python", name, *arguments)
        return self.run(folder, *command, more={"KERAS_BACKEND": backend})

    def by_unisono_run(self, file: str, *arguments: str, backend: str = "torch") -> Outcome:
        """Blocking: a program of ours on two workers."""
        folder, name = file.split("/")
        return self.run(folder, "unisono", "run", "-n", "2", "python", name, *arguments, more={"KERAS_BACKEND": backend})

    def exports(self) -> str:
        """Lines for a batch script: what it needs of this environment."""
        return "\n".join(f"export {name}='{self.environment[name]}'" for name in ("PATH", "KERAS_BACKEND"))


def digits_as_mnist() -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Pure: few images of MNIST's size, so that nothing has to be fetched. What real MNIST gives is a soak test."""
    images, labels = raw_digits()
    images = np.pad(np.kron(images * 15, np.ones((1, 3, 3), np.uint8)), ((0, 0), (2, 2), (2, 2)))
    return (images[:256], labels[:256]), (images[256:356], labels[256:356])


def write_mnist(folder: Path) -> None:
    """Local: the four files of MNIST, with few digits in them."""
    for part, (images, labels) in zip(("train", "t10k"), digits_as_mnist(), strict=True):
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
            (folder / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes()))


# ---- the code of the lectures ----------------------------------------------------------------------------------------


def text_of(number: int) -> str:
    """Local: a lecture. Skips the test where there is none."""
    found = sorted(LECTURES.glob(f"{number:03}_*.txt"))
    if not found:
        pytest.skip(f"the text of lecture {number} is not in {LECTURES}; put {number:03}_NAME.txt there to run its code")
    return found[0].read_text()


def fenced(text: str, begin: str = "", end: str = "") -> list[str]:
    """Pure: the blocks of code between two places of a text."""
    part = text[text.index(begin) : text.index(end, text.index(begin)) if end else None]
    return [block.rstrip() for block in re.findall(r"^```\n(.*?)^```", part, re.DOTALL | re.MULTILINE)]


def edited(code: str, rules: Rules) -> str:
    """Pure: with what is different today. A rule that finds nothing is an error: the code is another than was meant."""
    for pattern, replacement in rules:
        code, count = re.subn(pattern, replacement, code, flags=re.MULTILINE)
        assert count, f"rule {pattern!r} finds nothing in\n{code}"
    return code
