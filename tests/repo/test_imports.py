"""Heavy packages load at use: what `import unisono` and its help pages bring in, seen from a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = frozenset({"torch", "numpy", "mpi4py", "keras", "tensorflow", "jax", "optuna", "zmq", "h5py", "matplotlib", "psutil"})

HELP = """
import contextlib, io, sys
from unisono.cli import main
sys.argv = ["unisono", *{arguments!r}]
shown = io.StringIO()
with contextlib.redirect_stdout(shown):
    try:
        code = main()
    except SystemExit as end:
        code = end.code
assert not code and "usage" in shown.getvalue().lower(), (code, shown.getvalue())
"""

PROGRAMS = {
    "import unisono": "import unisono",
    "unisono --help": HELP.format(arguments=["--help"]),
    "unisono run --help": HELP.format(arguments=["run", "--help"]),
}


def loaded_packages(program: str) -> set[str]:
    report = f"{program}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return {name.split(".")[0] for name in json.loads(done.stdout)}


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_heavy_is_loaded(name: str) -> None:
    packages = loaded_packages(PROGRAMS[name])
    assert "unisono" in packages
    assert not packages & HEAVY


def test_a_heavy_package_would_be_seen() -> None:
    assert loaded_packages("import unisono.comm.base") >= {"torch"}


def test_the_command_shows_its_help() -> None:
    done = subprocess.run([sys.executable, "-m", "unisono.cli", "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout.lower()
    assert " run" in done.stdout
