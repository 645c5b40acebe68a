"""horovod.tensorflow on real processes: operations eagerly and in graphs, tapes and optimisers, and programs of TensorFlow 1."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache

import pytest

from tests.ranks.checks import PROGRAMS, names_in
from tests.system.fork_server import ForkServer
from unisono.testing.ranks import GroupResult

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="needs TensorFlow: pip install tensorflow"),
]

LIMIT_S = 280.0
"""Mostly TensorFlow's own: to load, and to trace."""
JOBS = {
    "horovod_tensorflow.py": [("single", 1), ("shm", 2), ("gloo", 3)],
    "horovod_tensorflow_learning.py": [("single", 1), ("shm", 3)],
    "horovod_tensorflow_1.py": [("shm", 2)],
    "horovod_tensorflow_elastic.py": [("shm", 2)],
}

RARE = {("horovod_tensorflow.py", "single"), ("horovod_tensorflow.py", "gloo"), ("horovod_tensorflow_learning.py", "single")}
"""Groups that would hardly show anything else, and take half a minute."""
SELDOM = (pytest.mark.soak,)

Results = Callable[[str, str, int], GroupResult]


CASES = [
    pytest.param(program, engine, size, check, id=f"{check}-{engine}-{size}", marks=SELDOM if (program, engine) in RARE else ())
    for program, groups in JOBS.items()
    for engine, size in groups
    for check in names_in(program)
]


@pytest.fixture(scope="module")
def results(tensorflow_server: ForkServer) -> Results:
    """A program runs all its checks when the first of them is asked for."""

    @cache
    def run(program: str, engine: str, size: int) -> GroupResult:
        variables = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2"}
        with tensorflow_server.start([str(PROGRAMS / program)], size, engine, variables) as group:
            return group.wait(LIMIT_S)

    return run


@pytest.mark.parametrize(("program", "engine", "size", "check"), CASES)
def test_check(results: Results, program: str, engine: str, size: int, check: str) -> None:
    ended = results(program, engine, size)
    passed = set(re.findall(rf"rank (\d+): {check}: ok", ended.output))
    assert passed == {str(rank) for rank in range(size)}, str(ended)


def test_names_come_without_tensorflow() -> None:
    """The package, and with it `horovod.tensorflow.keras`, can be imported where TensorFlow is not installed."""
    program = (
        "import sys; sys.modules['tensorflow'] = None\n"
        "import unisono.horovod.tensorflow as hvd\n"
        "hvd.init(); print(hvd.rank(), hvd.size(), hvd.Average, 'allreduce' in dir(hvd))\n"
        "try:\n    hvd.allreduce\n"
        "except ImportError: print('needs tensorflow')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["0 1 0 True", "needs tensorflow"]
