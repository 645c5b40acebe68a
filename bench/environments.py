"""Environments of contenders that cannot live in ours: each MPI brings its own mpirun and library."""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from bench.contenders.contender import run_or_leave
from bench.groups import ROOT

HOMES = ROOT / ".venv-bench"
CONSTRAINTS = ROOT / "bench" / "constraints.txt"
INSTALL_LIMIT_S = 900.0


class Environment:
    """A virtual environment under `.venv-bench/`. Local; made once, and again when its pins change."""

    def __init__(self, name: str, requirements: Sequence[str], sees_main: bool = False, constraints: Path = CONSTRAINTS) -> None:
        self.folder = HOMES / name
        self._requirements = tuple(requirements)
        self._constraints = constraints
        self._sees_main = sees_main
        """Whether the packages of our own environment (PyTorch) are visible in it."""

    @property
    def python(self) -> str:
        return self.program("python")

    @property
    def variables(self) -> dict[str, str]:
        return {"PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}", "VIRTUAL_ENV": str(self.folder)}

    def program(self, name: str) -> str:
        return str(self.folder / "bin" / name)

    def make(self) -> None:
        """Local, blocking: make it if it is not there; raises `Unavailable` if it cannot be made."""
        stamp = self.folder / "made"
        if stamp.exists() and stamp.read_text() == self._recipe():
            return
        run_or_leave(f"make {self.folder}", [sys.executable, "-m", "venv", "--clear", str(self.folder)], INSTALL_LIMIT_S)
        if self._sees_main:
            purelib = sysconfig.get_path("purelib")
            inside = self.folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
            (inside / "packages_of_the_main_environment.pth").write_text(f"{purelib}\n")
        install = [self.python, "-m", "pip", "install", "--quiet", "--constraint", str(self._constraints), *self._requirements]
        run_or_leave(f"install {' '.join(self._requirements)}", install, INSTALL_LIMIT_S)
        stamp.write_text(self._recipe())  # last, so that an interrupted installation is begun again

    def _recipe(self) -> str:
        made_of = repr((sys.version, self._requirements, self._constraints.read_text()))
        return hashlib.sha256(made_of.encode()).hexdigest()
