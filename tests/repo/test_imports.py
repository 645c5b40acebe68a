"""Heavy packages load at use: what `import unisono` and its help pages bring in, seen from a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from unisono.cli import VERBS

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SRC = ROOT / "src" / "unisono"

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

VERB = """
from unisono.cli import main
assert main({arguments!r}) == 0
"""

PROGRAMS = {
    "import unisono": "import unisono",
    "unisono --help": HELP.format(arguments=["--help"]),
    **{f"unisono {verb} --help": HELP.format(arguments=[verb, "--help"]) for verb in VERBS},
}

MOST_FOR_HELP = 20
MOST_FOR_A_VERB = 50
"""Its options come from the files that read them: `unisono submit --help` has those of the training and of the job."""
MOST_FOR_A_TRAINING = 210
NOT_FOR_A_TRAINING = (
    *("api", "doctor", "predict", "slurm_jobs", "testing", "tuning"),
    *("horovod", "keras", "metrics.keras", "model.keras", "model.lightning"),
    *("training.frontends.keras_frontend", "training.frontends.lightning_frontend"),
    *("algorithms.server", "training.server", "comm.exchange"),
    *(f"algorithms.{name}" for name in ("downpour", "easgd", "gem", "parameter_server")),
)
"""Packages and modules: what a training of a PyTorch model in lock step does not use."""
SOURCES_OF_DIGITS = ("arrays", "digits", "open_source")
"""Modules of data/sources that examples/digits.py uses."""


def loaded_modules(program: str) -> set[str]:
    """By its end."""
    report = f"{program}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def ours(modules: set[str]) -> list[str]:
    return sorted(name for name in modules if name.split(".")[0] == "unisono")


def loaded_packages(program: str) -> set[str]:
    return {name.split(".")[0] for name in loaded_modules(program)}


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_heavy_is_loaded(name: str) -> None:
    packages = loaded_packages(PROGRAMS[name])
    assert "unisono" in packages
    assert not packages & HEAVY


@pytest.mark.parametrize(
    "words",
    [
        ["train", str(EXAMPLES / "digits.py"), "--set", "epochs=1"],
        ["run", "-n", "2", "true"],
    ],
    ids=["train", "run"],
)
def test_nothing_of_horovod_is_loaded_unless_requested(words: list[str], tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "run")] if words[0] == "train" else []
    loaded = loaded_modules(VERB.format(arguments=[*words, *out]))
    assert "unisono" in loaded
    assert not [name for name in loaded if name.startswith("unisono.horovod")]


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_loads_only_its_own_verb(verb: str) -> None:
    found = ours(loaded_modules(PROGRAMS[f"unisono {verb} --help".replace("  ", " ")]))
    assert len(found) <= (MOST_FOR_A_VERB if verb else MOST_FOR_HELP), found
    verbs = [name.removeprefix("unisono.commands.") for name in found if name.startswith("unisono.commands.")]
    assert not set(verbs) & set(VERBS) - {verb, *(["train"] if verb == "submit" else [])}


def test_a_training_on_one_worker_loads_what_it_uses(tmp_path: Path) -> None:
    words = ["train", str(EXAMPLES / "digits.py"), "--epochs", "1", "--quiet", "--out", str(tmp_path / "run")]
    loaded = loaded_modules(VERB.format(arguments=words))
    assert not loaded & {"torch._dynamo", "sympy"}, "PyTorch's compiler takes a second to load, and nothing is compiled here"
    found = ours(loaded)
    assert len(found) <= MOST_FOR_A_TRAINING, found
    unused = tuple(f"unisono.{name}." for name in NOT_FOR_A_TRAINING)
    assert not [name for name in found if f"{name}.".startswith(unused)]
    sources = {name.removeprefix("unisono.data.sources.") for name in found if name.startswith("unisono.data.sources.")}
    assert sources <= set(SOURCES_OF_DIGITS)
    assert [name for name in found if name.startswith("unisono.commands.")] == [
        "unisono.commands.on_workers",
        "unisono.commands.train",
    ]


def test_unused_modules_exist() -> None:
    """So that none stays in the list when it has got another name."""
    paths = [
        SRC / name.replace(".", "/") for name in (*NOT_FOR_A_TRAINING, *(f"data.sources.{name}" for name in SOURCES_OF_DIGITS))
    ]
    assert not [str(path) for path in paths if not path.is_dir() and not path.with_suffix(".py").exists()]


def test_a_heavy_package_would_be_seen() -> None:
    assert loaded_packages("import unisono.comm.base") >= {"torch"}


def test_the_command_shows_its_help() -> None:
    done = subprocess.run([sys.executable, "-m", "unisono.cli", "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout.lower()
    assert " run" in done.stdout
