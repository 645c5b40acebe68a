"""Models that keep a state in places of their own go on bit for bit: weights, optimisers and metrics are those of one life."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.ranks.test_resume import PROGRAM, STOPPED, expect_same, folder, summary, train  # noqa: F401 - the fixture is used by all
from tests.system.fork_server import ForkServer
from unisono.cli import main
from unisono.model.flat import hash_of

try:
    import lightning.pytorch  # noqa: F401 - now, as it sets a variable of the environment, which no test may leave behind
except ImportError:
    has_lightning = False
else:
    has_lightning = True

LIGHTNING = "from torch.nn import Module as LightningModule"


def use(name: str) -> None:
    for program in (PROGRAM.name, name):
        shutil.copy(PROGRAM.with_name(program), program)
    Path(name).rename("task.py")


def state(out: str) -> tuple[str, Any]:
    """All tensors of the last checkpoint, and all plain values but those of the trainer, which has its times there."""
    newest = max(Path(out, "checkpoints").glob("step-*"))
    plain = json.loads((newest / "progress.json").read_text())
    del plain["trainer"]
    return hash_of(load_file(newest / "state.safetensors")), plain


def expect_all_the_same(out: str, undisturbed: str) -> None:
    expect_same(out, undisturbed)
    found, expected = state(out), state(undisturbed)
    assert found[1] == expected[1]
    assert found[0] == expected[0]


@pytest.mark.skipif(not has_lightning, reason="Lightning is not installed; `pip install lightning` lets this test run")
def test_a_lightning_module_resumes_wherever_it_was_stopped() -> None:
    """In the middle of an epoch, before its end is told to the module, in the evaluation after that, in the test."""
    use("resume_lightning.py")
    text = Path("task.py").read_text()
    assert LIGHTNING in text
    Path("task.py").write_text(text.replace(LIGHTNING, "from lightning.pytorch import LightningModule"))
    assert train("undisturbed", "--log-every", "1") == 0
    for when in ("train 14", "train 9", "eval 2", "eval 8"):
        Path("stop-at").write_text(when)
        assert train(when, "--log-every", "1") == STOPPED, when
        assert train(when, "--log-every", "1") == 0, when
        expect_all_the_same(when, "undisturbed")


@pytest.mark.parametrize(("program", "evaluation"), [("resume_lightning.py", "eval 2"), ("resume_gan.py", "eval 1")])
def test_two_workers_resume(program: str, evaluation: str, fork_server: ForkServer) -> None:
    use(program)
    command = ["-m", "unisono.cli", "train", "task.py", "--quiet", "--log-every", "1", "--out"]
    ended = fork_server.run([*command, "undisturbed"], 2, "shm")
    assert ended.exit_code == 0, ended
    for when in ("train 4", evaluation):
        Path("stop-at").write_text(when)
        assert fork_server.run([*command, when], 2, "shm").exit_code == STOPPED
        ended = fork_server.run([*command, when], 2, "shm")
        assert ended.exit_code == 0, ended
        expect_all_the_same(when, "undisturbed")


def test_one_worker_takes_up_what_two_have_logged(fork_server: ForkServer) -> None:
    use("resume_lightning.py")
    Path("stop-at").write_text("train 4")
    assert fork_server.run(["-m", "unisono.cli", "train", "task.py", "--quiet", "--out", "run"], 2, "shm").exit_code == STOPPED
    assert train("run") == 0
    for epoch in summary("run")["history"]:
        assert epoch["metrics"]["number"] == pytest.approx((sum(range(9)) * 64 + 9 * 24) / 600), (
            "the number of each batch in an epoch"
        )
        assert epoch["metrics"]["place"] == 100 * epoch["epoch"] + epoch["step"]


def test_metrics_that_begin_again_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    use("resume_lightning.py")
    text = Path("task.py").read_text()
    counting = "self.begun += 1\n        self.net[0]._update_count = 1  # as a metric of TorchMetrics that has seen a batch"
    Path("task.py").write_text(text.replace("self.begun += 1", counting))
    Path("stop-at").write_text("train 4")
    assert train("run") == STOPPED
    assert main(["train", "task.py", "--out", "run"]) == 0
    assert "warning: net.0 (TorchMetrics) will cover only the rest of this epoch" in " ".join(capsys.readouterr().out.split())


def test_a_game_of_two_optimizers_resumes() -> None:
    use("resume_gan.py")
    assert train("undisturbed", "--log-every", "1") == 0
    for when in ("train 5", "eval 1"):
        Path("stop-at").write_text(when)
        assert train(when, "--log-every", "1") == STOPPED, when
        assert train(when, "--log-every", "1") == 0, when
        expect_all_the_same(when, "undisturbed")


def test_what_a_module_cannot_keep_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    use("resume_lightning.py")
    Path("task.py").write_text(Path("task.py").read_text().replace('"all": self.losses', '"all": object()'))
    assert train("run") == 2
    told = capsys.readouterr().err
    assert "on_save_checkpoint of Learner: a value of type object cannot be saved in a checkpoint (checkpoint.losses.all)" in told
