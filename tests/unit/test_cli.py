"""The command line: what it understands, refuses and says."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import pytest

import unisono
from tests.system.processes import plain_environment
from unisono.cli import main
from unisono.commands import run
from unisono.launch import launch as launching
from unisono.launch.launch import LaunchConfig
from unisono.version import __version__

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[LaunchConfig]:
    """What `unisono run` would have started."""
    configs: list[LaunchConfig] = []

    def note(config: LaunchConfig) -> int:
        configs.append(config)
        return 7

    monkeypatch.setattr(launching, "launch", note)
    return configs


def refuse(arguments: Sequence[str], capsys: Capture) -> str:
    """The one line that a mistake gives."""
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("unisono: error: ") and shown.err.count("\n") == 1, shown.err
    return shown.err


NODES = ("--nodes", "2", "--rendezvous", "node01:29400")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "0", "x"], "-n must be a whole number of at least 1; received 0"),
        (["-n", "-3", "x"], "-n must be a whole number of at least 1; received -3"),
        (["-n", "four", "x"], "-n must be a whole number of at least 1; received 'four'"),
        (["-n", "2.5", "x"], "-n must be a whole number of at least 1; received '2.5'"),
        (["-n"], "-n: expected one argument"),
        (["x"], "-n, the number of processes, is missing"),
        (["-n", "2", "--bogus", "1", "x"], "unisono run does not know '--bogus'; see unisono run --help"),
        (["-n", "2", "--eng", "shm", "x"], "unisono run does not know '--eng'"),
        (["-n", "2", "--engine", "magic", "x"], "--engine must be one of auto, single, shm, mpi, gloo, nccl; received 'magic'"),
        (["-n", "2", "--engine", "single", "x"], "--engine single is for one process, but -n starts 2"),
        (["-n", "2", "--allreduce", "tree", "x"], "--allreduce must be one of auto, ring, recursive_doubling, rabenseifner,"),
        (["-n", "2", "--time-limit-s", "0", "x"], "--time-limit-s must be a finite number of seconds above 0; received 0"),
        (["-n", "2", "--time-limit-s", "nan", "x"], "--time-limit-s must be a finite number of seconds above 0; received nan"),
        (["-n", "2", "--time-limit-s", "soon", "x"], "--time-limit-s must be a finite number of seconds above 0; received 'soon'"),
        (["-n", "2", "--threads", "0", "x"], "--threads must be a whole number of at least 1; received 0"),
        (["-n", "2", "--on-failure", "panic", "x"], "--on-failure must be one of end, continue, restart, elastic; received 'p"),
        (["-n", "2", "--restarts", "3", "x"], "--restarts 3 has no effect without --on-failure restart; add it"),
        (
            ["-n", "2", "--on-failure", "restart", "--restarts", "0", "x"],
            "--restarts must be a whole number of at least 1; received 0",
        ),
        (["-n", "2", *NODES, "--node-rank", "0", "--on-failure", "restart", "x"], "--on-failure restart works on one node"),
        (["-n", "2", *NODES, "--node-rank", "2", "x"], "--node-rank must lie in 0..1 with --nodes 2; received 2"),
        (["-n", "2", *NODES, "--node-rank", "-1", "x"], "--node-rank must lie in 0..1 with --nodes 2; received -1"),
        (["-n", "2", *NODES, "x"], "--nodes 2 needs --node-rank on each host: 0..1"),
        (["-n", "2", "--node-rank", "1", "x"], "--node-rank 1 needs --nodes"),
        (["-n", "2", "--nodes", "0", "x"], "--nodes must be a whole number of at least 1; received 0"),
        (["-n", "2", "--nodes", "2", "--node-rank", "1", "x"], "--nodes 2 needs --rendezvous host:port"),
        (["-n", "2", "--rendezvous", "node01", "x"], "--rendezvous must be host:port"),
        (["-n", "2", "--rendezvous", "node01:99999", "x"], "--rendezvous must be host:port"),
        (["-n", "2"], "no program was given"),
        (["-n", "2", "--"], "no program was given"),
        (["-n", "2", "-m"], "-m needs the name of a module"),
        (["-n", "2", "-m", "no_such_module.part"], "module 'no_such_module.part' (-m) was not found"),
        (["-n", "2", "no-such-program"], "program 'no-such-program' was not found on PATH"),
    ],
)
def test_run_refuses(arguments: list[str], message: str, capsys: Capture) -> None:
    assert message in refuse(["run", *arguments], capsys)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("ENGINE", "magic", "UNISONO_ENGINE must be one of auto, single, shm, mpi, gloo, nccl; received 'magic' (environment)"),
        ("ALLREDUCE", "tree", "UNISONO_ALLREDUCE must be one of auto, ring, recursive_doubling, rabenseifner,"),
        ("TIME_LIMIT_S", "soon", "UNISONO_TIME_LIMIT_S must be a number of seconds above 0; received 'soon' (environment)"),
        ("ENGINE", "single", "UNISONO_ENGINE=single (environment) is for one process, but -n starts 2"),
        ("ENGINE", "mpi", "UNISONO_ENGINE=mpi (environment) needs processes that MPI has started"),
    ],
)
def test_run_names_the_variable_that_is_wrong(
    variable: str, value: str, message: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"UNISONO_{variable}", value)
    shown = refuse(["run", "-n", "2", "-m", "unisono"], capsys)
    assert message in shown and "--engine must" not in shown and "--engine single" not in shown


def test_an_option_outweighs_a_wrong_variable(monkeypatch: pytest.MonkeyPatch, capfd: Capture) -> None:
    monkeypatch.setenv("UNISONO_ENGINE", "magic")
    assert main(["run", "-n", "1", "--engine", "auto", "true"]) == 0


def test_engine_mpi_gives_the_line_that_starts_it(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "my train.py").write_text("")
    program = [str(tmp_path / "my train.py"), "--epochs", "3"]
    options = ["-n", "4", "--nodes", "2", "--node-rank", "0", "--rendezvous", "a:1", "--allreduce", "ring", "--engine", "mpi"]
    shown = refuse(["run", *options, *program], capsys)
    assert shown.startswith("unisono: error: --engine mpi needs processes that MPI has started, and")
    line = shown.partition("start them with: ")[2].partition(" (or with srun")[0]
    variables = ["UNISONO_ENGINE=mpi", "UNISONO_ALLREDUCE=ring"]
    assert shlex.split(line) == ["mpirun", "-n", "8", "env", *variables, sys.executable, *program]


def test_unknown_verbs_and_options_are_refused(capsys: Capture) -> None:
    assert "unknown verb 'fly'; known: apply, " in refuse(["fly"], capsys)
    assert "unisono does not know '--fly'" in refuse(["--fly"], capsys)
    assert "unknown verb 'tran'; did you mean 'train'?" in refuse(["tran", "task.py"], capsys)
    assert "does not know '--epoch'; did you mean '--epochs'?" in refuse(["train", "task.py", "--epoch=3"], capsys)
    assert "does not know '--learning-rate'; did you mean '--lr'?" in refuse(["train", "task.py", "--learning-rate", "1"], capsys)
    assert "unisono doctor does not know '--fly'" in refuse(["doctor", "--fly"], capsys)


def test_run_passes_everything_on(launched: list[LaunchConfig]) -> None:
    asked = ("-n", "4", "--engine", "shm", "--allreduce", "ring", "--time-limit-s", "2.5", "--threads", "5", "--job", "j")
    nodes = ("--nodes", "3", "--node-rank", "2", "--rendezvous", "a:1", "--log-dir", "logs", "--on-failure", "continue")
    assert main(["run", *asked, *nodes, "train.py", "-n", "9", "--help"]) == 7
    (config,) = launched
    assert config.program == ("train.py", "-n", "9", "--help")
    assert (config.num_local, config.engine, config.allreduce, config.time_limit_s) == (4, "shm", "ring", 2.5)
    assert (config.num_nodes, config.node_rank, config.rendezvous, config.job) == (3, 2, "a:1", "j")
    assert (str(config.log_dir), config.on_failure, config.threads, config.max_restarts) == ("logs", "continue", 5, 0)


def test_restart_has_a_limit_by_default(launched: list[LaunchConfig]) -> None:
    assert main(["run", "-n", "2", "--on-failure", "restart", "train.py"]) == 7
    assert main(["run", "-n", "2", "--on-failure=restart", "--restarts=8", "train.py"]) == 7
    assert [config.max_restarts for config in launched] == [3, 8]


@pytest.mark.parametrize(
    ("line", "options", "program"),
    [
        ("-n 2 prog -n 3", "-n 2", "prog -n 3"),
        ("-n2 --engine=shm prog", "-n2 --engine=shm", "prog"),
        ("-n 2 -- prog -- x", "-n 2", "prog -- x"),
        ("-n 2 -m mod -m x --engine", "-n 2", "-m mod -m x --engine"),
        ("--help prog", "--help", "prog"),
        ("-n 2 - x", "-n 2", "- x"),
        ("-n", "-n", ""),
    ],
)
def test_where_the_program_begins(line: str, options: str, program: str) -> None:
    assert run.split(["run", *line.split()]) == (["run", *options.split()], tuple(program.split()))


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["run", "-n", "2", "-h", "x"], ["doctor", "--help"], []])
def test_help_has_examples(arguments: list[str], capsys: Capture) -> None:
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "usage: unisono" in shown and "examples:\n  unisono" in shown


def test_version(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"unisono {__version__}\n"


def test_doctor_is_given_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[argparse.Namespace] = []

    def examine(args: argparse.Namespace) -> int:
        seen.append(args)
        return 1

    fake = ModuleType("unisono.doctor")
    fake.main = examine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "unisono.doctor", fake)
    monkeypatch.setattr(unisono, "doctor", fake, raising=False)
    assert main(["doctor", "--json", "-n", "4", "--no-bandwidth"]) == 1
    assert main(["doctor"]) == 1
    assert [(args.json, args.n, args.no_bandwidth) for args in seen] == [(True, 4, True), (False, None, False)]


def raiser(error: BaseException) -> Callable[[LaunchConfig], int]:
    def launch(config: LaunchConfig) -> int:
        raise error

    return launch


def test_an_interrupt_gives_130(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "launch", raiser(KeyboardInterrupt()))
    assert main(["run", "-n", "2", "train.py"]) == 130


def test_our_own_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "launch", raiser(RuntimeError("ours")))
    with pytest.raises(RuntimeError, match="ours"):
        main(["run", "-n", "2", "train.py"])


def test_the_installed_command_and_the_module_are_the_same() -> None:
    for command in (["unisono"], ["unisono.cli"]):
        done = subprocess.run(
            [sys.executable, "-m", *command, "run", "-n", "0", "x"],
            env=plain_environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "unisono: error: -n must be a whole number of at least 1; received 0\n"
