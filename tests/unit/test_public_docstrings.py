"""Public names say what they are, name each of their arguments, and show an example that runs."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from typing import Any

import pytest

import unisono as un
from tests.unit.docstring_examples import CONSTANTS, examples, missing_args, public_methods, public_names

NAMES = public_names()
METHODS = public_methods()
NEEDS_EXAMPLE = [name for name, one in NAMES.items() if not (inspect.isclass(one) and issubclass(one, Exception))]
REFUSED = ("un.keras.CentralStorageStrategy", "un.keras.TPUStrategy")
"""They stand there for their message."""
TIME_LIMIT_S = 110.0


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What is wrong with each example, by name; all run in one other process, which may change what it likes."""
    folder = tmp_path_factory.mktemp("examples")
    results = folder / "results.jsonl"
    environment = {**os.environ, "KERAS_BACKEND": "torch", "OMP_NUM_THREADS": "1"}
    with (folder / "output.txt").open("w") as output:
        command = [
            sys.executable,
            "-W",
            "error",
            "-W",
            "default::DeprecationWarning",
            "-m",
            "tests.unit.docstring_examples",
            str(results),
        ]
        try:
            code: object = subprocess.run(
                command, stdout=output, stderr=output, env=environment, timeout=TIME_LIMIT_S, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            code = f"none after {TIME_LIMIT_S:.0f} s"
    found = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    last = (folder / "output.txt").read_text()[-2000:]
    ended = {name: failure for name, _, failure in found}
    return {name: ended.get(name, f"it did not end; exit code {code}; output:\n{last}") for name in examples()}


@pytest.mark.parametrize("name", [*NAMES, *METHODS])
def test_docstring(name: str) -> None:
    one = (NAMES | METHODS)[name]
    text = inspect.getdoc(one) or ""
    first, _, rest = text.partition("\n")
    assert first.endswith(".") and len(first) > 8, f"{name} has no first line that says what it is"
    assert not rest or rest.startswith("\n"), f"the first line of {name} is a paragraph; say what it is in one line"
    if callable(one) and not (inspect.isclass(one) and issubclass(one, Exception)) and name not in REFUSED:
        assert not list(missing_args(name, one))


def test_constants_are_explained_where_help_shows_them() -> None:
    text = inspect.getdoc(un.Op) or ""
    assert all(name in text for name in CONSTANTS if name != "__version__")


@pytest.mark.parametrize("name", NEEDS_EXAMPLE)
def test_has_example(name: str) -> None:
    assert name in examples() or name in REFUSED, f"{name} shows no example"


@pytest.mark.timeout(TIME_LIMIT_S + 10.0)
@pytest.mark.parametrize("name", examples())
def test_example_runs(name: str, failures: dict[str, str]) -> None:
    assert not failures[name], failures[name]


def test_missing_argument_is_seen() -> None:
    def divided(whole: Any, part: float = 0.1, seed: int = 0) -> None:
        """Something divided.

        Args:
            whole: What is divided.
            part: The share that is cut off, where seed decides which.
        """

    assert list(missing_args("divided", divided)) == ["divided: Args does not name seed"]
