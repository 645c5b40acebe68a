"""Every command in a block of README, how-tos, concepts and algorithm pages is run in a short form: one epoch, two trials, forked
ranks, few of them. Those that need what is not here are only parsed, as all are, by tests/repo/test_docs_truth.py."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from tests.system.documented import ROOT, Command, commands, given, how_tos
from tests.system.fork_server import ForkServer
from tests.system.processes import plain_environment, run_together
from unisono.errors import STOPPED_CODE

LIMIT_S = 100.0
UNISONO = (sys.executable, "-m", "unisono")

ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {
        r"^(srun|mpirun|torchrun) .*\b(train|tune|join)\b": "needs its launcher: test_train_launchers.py, test_tune_launchers.py",
        r"^(srun|mpirun|torchrun) .*\bdoctor\b": "needs its launcher: test_doctor.py",
        r"\bunisono doctor\b": "starts ranks of its own and measures for seconds: test_doctor.py",
        r"\bunisono (verify)\b": "starts ranks of its own: test_verify.py",
        r"--elastic|\bunisono join\b": "needs a server and workers at the same time: tests/faults/test_elastic.py",
        r"-m unisono tune": "13 processes of their own: test_tune_launchers.py",
        r"examples/hello.py": "loads PyTorch twice: tests/repo/test_wheel.py",
        r"--data\.kind=hdf5|data\.kind=hdf5": "needs files of the LHC jets",
        r"examples/jedi_net": "40,000 jets of 16 or 100 particles: tests/unit/examples/test_jedi_net.py has few",
        r"examples/keras_": "loads Keras: tests/contracts/test_models.py and tests/ranks/test_keras_fit.py",
        r"runs/melanoma": "needs pictures: test_predict.py",
        r"\bdata get\b|examples/lectures/": "needs the internet, or Keras and MNIST: the tests of the lectures have small data",
        r"--nodes 2 --node-rank": "needs two hosts: test_launch.py",
        r"-H a:2|--host-discovery-script": "needs hosts and a script that names them: test_horovod_elastic.py",
        r"horovodrun .*--min-np": "a job that changes its size: test_horovod_elastic.py",
    }
)
"""Pattern of commands that are not run here -> the reason, and the test that runs them."""

SHORT: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "train": ("--epochs", "1"),
        "tune": ("--trials", "2", "--epochs", "1"),
        "submit": ("--dry-run",),
    }
)
"""Verb -> words that are added at the end, where the last one counts."""
SHORTER: Mapping[str, str] = MappingProxyType({"--group": "2", "--simulate": "4", "--folds": "2"})
"""Option -> its value here."""
MOST_RANKS, MOST_WITH_SERVERS = 2, 3
NEEDS_NO_SHORTENING = ("--join", "--report", "--export")

TASK = """
from typing import Annotated
from torch import nn
import unisono as un

def model(width: Annotated[int, un.Range(16, 64)] = 16) -> nn.Module:
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

def data() -> un.Splits:
    images, labels = un.digits()
    return un.split((images[:400], labels[:400]), validation=0.2, test=0.2, how="stratified", seed=1)

task = un.Task(
    model=model, data=data, loss="cross_entropy", metrics=("accuracy", "f1"), optimizer="sgd", lr=0.1, global_batch=48, epochs=2
)
"""
PROGRAM = "import os\nprint('rank', os.environ['UNISONO_RANK'])\n"
"""In the place of programs that pages leave to the reader."""


def shown() -> Iterator[Command]:
    """Those of blocks, and not those that another one starts. Commands that differ only in -n and --out are one."""
    seen = set()
    for page in how_tos():
        for command in commands(page):
            key = (command.launcher, tuple(without(without(command.words, "-n"), "--out")))
            if command.in_block and "unisono" not in command.launcher and key not in seen:
                seen.add(key)
                yield command


def without(words: Sequence[str], option: str) -> list[str]:
    at = words.index(option) if option in words else len(words)
    return [*words[:at], *words[at + 2 :]]


def reason(command: Command) -> str | None:
    line = " ".join((*command.launcher, "unisono", *command.words))
    return next((why for pattern, why in ELSEWHERE.items() if re.search(pattern, line)), None)


FIRST, *OTHERS = shown()
"""The first of the README is run as it stands."""
RUN_HERE = [command for command in OTHERS if reason(command) is None]


# ---- what the commands find in their folder --------------------------------------------------------------------------


@dataclass(frozen=True)
class Workshop:
    """Runs and studies that commands refer to, made once."""

    fork_server: ForkServer
    folder: Path

    def unisono(self, words: Sequence[str], ranks: int = 1) -> str:
        """Local, blocking: the command on forked ranks, here."""
        ended = self.fork_server.run(["-m", "unisono", *words], ranks, "auto", LIMIT_S)
        assert ended.exit_code == 0, f"unisono {' '.join(words)} on {ranks} ranks:\n{ended}"
        return ended.output

    def have(self, name: str) -> Path:
        """Local, blocking: a run or a study; the first who needs it makes it."""
        place = self.folder / name
        if not place.exists():
            ranks, *words = MADE_BY[name].split()
            with chdir(self.folder):
                self.unisono([*words, "--out", name], int(ranks))
        return place


MADE_BY: Mapping[str, str] = MappingProxyType(
    {
        "run": "1 train task.py --epochs 1",
        "shards": "1 train task.py --epochs 1 --shards 8",
        "asynchronous": "2 train task.py --epochs 1 --algorithm gem",
        "study": "1 tune task.py --trials 1 --epochs 1 --folds 2",
    }
)
"""What it is -> ranks and command."""


def furnish(folder: Path) -> None:
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "task.py").write_text(TASK)
    for name in ("program.py", "train.py", "script.py"):
        (folder / name).write_text(PROGRAM)


@pytest.fixture(scope="module")
def workshop(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    folder = tmp_path_factory.mktemp("workshop")
    furnish(folder)
    return Workshop(fork_server, folder)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    furnish(tmp_path)
    return tmp_path


def prepare(command: Command, workshop: Workshop, here: Path) -> None:
    """Copies of the runs, studies and inputs that the command reads."""
    reads = [word for word in command.words[1:] if re.match(r"(runs|studies)/", word)]
    writes = given(command.words, "--out")
    for word in reads:
        if word == writes and command.verb in ("train", "tune"):
            continue
        is_study = word.startswith("studies/") or given(command.words, "--from-study") == word
        kind = "study" if is_study else "asynchronous" if given(command.words, "--replay") == word else "run"
        for name in [word] if "*" not in word else [word.replace("*", "a"), word.replace("*", "b")]:
            shutil.copytree(workshop.have(kind), here / name, dirs_exist_ok=True)
    for name in command.words[1:]:
        if name.endswith(".npy") and name != writes:
            np.save(here / name, np.zeros((5, 64), np.float32))
        if name.endswith(".h5") and name != writes:
            import h5py

            with h5py.File(here / name, "w") as file:
                file["images"] = np.zeros((5, 64), np.float32)


def shortened(words: Sequence[str]) -> tuple[list[str], int]:
    """Pure: the words of the verb without -n, and the number of ranks."""
    most = MOST_RANKS if given(words, "--group") is given(words, "--servers") is None else MOST_WITH_SERVERS
    ranks = min(int(given(words, "-n") or 1), most)
    ours = without(words, "-n")
    for option, value in SHORTER.items():
        if given(ours, option) is not None:
            ours += [option, value]
    if not any(option in ours for option in NEEDS_NO_SHORTENING):
        ours += SHORT.get(words[0], ())
    return ours, ranks


# ---- the tests -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [one for one in RUN_HERE if one.verb not in ("run", "horovodrun")], ids=lambda one: one.text)
def test_a_command_does_what_the_page_says(command: Command, workshop: Workshop, here: Path) -> None:
    prepare(command, workshop, here)
    words, ranks = shortened(command.words)
    expanded = [path for word in words for path in (sorted(map(str, Path().glob(word))) if "*" in word else [word])]
    printed = workshop.unisono(expanded, ranks)
    assert printed
    out = given(words, "--out")
    if command.verb == "train":
        assert (here / (out or f"runs/{Path(words[1]).stem}") / "summary.json").exists(), printed
    assert out is None or (here / out).exists(), printed


@pytest.mark.parametrize("command", [one for one in RUN_HERE if one.verb in ("run", "horovodrun")], ids=lambda one: one.text)
def test_a_program_is_started(command: Command, here: Path) -> None:
    ranks = int(given(command.words, "-n") or given(command.words, "-np") or 1)
    words = [str(here / Path(word).name) if word.startswith("/scratch/") else word for word in command.words]
    (outcome,) = run_together([[*UNISONO, *words]], plain_environment(), LIMIT_S)
    assert outcome.code == 0, str(outcome)
    assert {f"rank {rank}" for rank in range(ranks)} <= set(re.findall(r"rank \d+", outcome.output)), str(outcome)


def test_the_first_command_of_the_readme(here: Path) -> None:
    """As it stands, with its launcher, but for a few steps only."""
    assert FIRST.verb == "train" and given(FIRST.words, "-n") == "2"
    (outcome,) = run_together([[*UNISONO, *FIRST.words, "--max-steps", "2"]], plain_environment(), LIMIT_S)
    assert outcome.code == STOPPED_CODE, str(outcome)
    assert "run the same command to resume from step 2" in outcome.output


def test_every_command_is_run_or_has_a_reason() -> None:
    found = list(shown())
    assert len(found) > 50 and len(RUN_HERE) > 20
    lines = [" ".join((*one.launcher, "unisono", *one.words)) for one in found]
    assert [pattern for pattern in ELSEWHERE if not any(re.search(pattern, line) for line in lines)] == []
    tests = {name for why in ELSEWHERE.values() for name in re.findall(r"[\w/]+\.py", why)}
    assert [name for name in tests if not (ROOT / name).exists() and not (ROOT / "tests" / "ranks" / name).exists()] == []


def test_how_a_command_is_shortened() -> None:
    words, ranks = shortened(["train", "task.py", "-n", "9", "--group", "4", "--algorithm", "easgd"])
    assert (" ".join(words), ranks) == ("train task.py --group 4 --algorithm easgd --group 2 --epochs 1", 3)
    assert shortened(["tune", "--join", "studies/x", "-n", "4"]) == (["tune", "--join", "studies/x"], 2)
