"""The table of docs/how-to/stop-and-resume.md, cell by cell: what started the training, what stops it, what is then saved and which
exit code comes out. Whatever happens, the same command again ends with the weights of a run that nobody disturbed.

To start Python and PyTorch is most of the time here, so each launcher has a test of some cells, which then go on in ranks that are
there at once, and one of all, which go on by the same command. `make test` has some cells of our launcher and of mpirun, and
`make soak` has all.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from tests.ranks.stop_table import LIMIT_S, STOPPED, Cell, Row, Started, Table, Training
from tests.system.fork_server import ForkServer
from tests.system.processes import Program, plain_environment, within
from tests.system.slurm import SlurmCluster

BIN = Path(sys.executable).parent
UNISONO, MPIRUN, TORCHRUN = (str(BIN / name) for name in ("unisono", "mpirun", "torchrun"))
AS_ROOT = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
NUM_STEPS = 150

pytestmark = pytest.mark.timeout(400)
some_and_all = pytest.mark.parametrize("wholly", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["some", "all"])


def by(signum: signal.Signals) -> Callable[[Program, Training], None]:
    return lambda program, _: program.send(signum)


def ctrl_c(program: Program, _: Training) -> None:
    program.press_ctrl_c()


def nothing(_: Started, __: Training) -> None:
    """The clock does it."""


TERM, USR1 = by(signal.SIGTERM), by(signal.SIGUSR1)
TIME_LIMIT = Cell("--time-limit", nothing, STOPPED, why="time limit", options=("--time-limit", "60s"), pace_s=0.5)
"""Long enough for the same command to reach the end when nothing holds it up, and not when each of the steps is held up."""


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> Table:
    made = Table(tmp_path_factory.mktemp("cells"), fork_server)
    for num_workers in (1, 2):
        training = Training(made.folder / f"undisturbed_{num_workers}", num_workers)
        training.prepare("")
        ended = made.train(training)
        assert ended.code == 0, ended
        made.undisturbed[num_workers] = training.result()
        assert training.result()["steps"] == NUM_STEPS
    return made


def program_row(name: str, num_workers: int, *before: str, after: Sequence[str] = ()) -> Row:
    if not Path(before[0]).exists():
        pytest.skip(f"{before[0]} is not installed; run make setup")
    return Row(
        name, num_workers, lambda training, options: Program([*before, *training.command(*options, *after)], plain_environment())
    )


@some_and_all
def test_alone(table: Table, wholly: bool) -> None:
    cells = (
        Cell("SIGTERM", TERM, STOPPED, why="SIGTERM", is_quick=True),
        Cell("SIGUSR1", USR1, STOPPED, why="SIGUSR1", is_quick=True),
        Cell("Ctrl-C", ctrl_c, STOPPED, why="Ctrl-C", is_quick=True),
        TIME_LIMIT,
    )
    table.play(program_row("alone", 1, UNISONO), cells, wholly)


@some_and_all
def test_our_launcher(table: Table, wholly: bool) -> None:
    cells = (
        Cell("SIGTERM", TERM, STOPPED, why="SIGTERM", is_quick=True),
        Cell("Ctrl-C", ctrl_c, STOPPED, why="Ctrl-C", is_quick=True),
        Cell("SIGUSR1", USR1, STOPPED, why="SIGUSR1"),
        TIME_LIMIT,
    )
    table.play(program_row("ours", 2, UNISONO, after=("-n", "2")), cells, wholly)


@some_and_all
def test_mpirun(table: Table, wholly: bool) -> None:
    cells = (
        Cell("SIGUSR1", USR1, STOPPED, why="SIGUSR1", is_quick=True),
        Cell("SIGTERM", TERM, 1, is_saved=False, is_quick=True),
        Cell("Ctrl-C", ctrl_c, 1, is_saved=False),
        TIME_LIMIT,
    )
    table.play(program_row("mpirun", 2, MPIRUN, *AS_ROOT, "--oversubscribe", "-n", "2", UNISONO), cells, wholly)


@pytest.mark.soak
@some_and_all
def test_torchrun(table: Table, wholly: bool) -> None:
    cells = (
        Cell("SIGTERM", TERM, 1, why="SIGTERM", is_quick=True),
        Cell("SIGUSR1", USR1, -signal.SIGUSR1, why="SIGTERM", is_quick=True),
        Cell("Ctrl-C", ctrl_c, 1, why="Ctrl-C"),
        Cell("SIGTERM and no time", TERM, 1, is_saved=False),
        replace(TIME_LIMIT, code=1),
    )
    table.play(program_row("torchrun", 2, TORCHRUN, "--standalone", "--nproc-per-node=2", "-m", "unisono"), cells, wholly)


@pytest.mark.soak
def test_torchrun_that_handles_usr1(table: Table) -> None:
    handled = "--signals-to-handle=SIGTERM,SIGINT,SIGUSR1"
    row = program_row("torchrun_told", 2, TORCHRUN, "--standalone", "--nproc-per-node=2", handled, "-m", "unisono")
    table.play(row, [Cell("SIGUSR1", USR1, 1, why="SIGUSR1")], wholly=True)


# ---- SLURM ---------------------------------------------------------------------------------------------------------------


def scancel(cluster: SlurmCluster, *options: str) -> Callable[[Started, Training], object]:
    return lambda _, training: cluster.ask("scancel", *options, f"--name={training.name}")


def ctrl_c_then_usr1(program: Program, training: Training) -> None:
    ctrl_c(program, training)
    USR1(program, training)


def ctrl_c_until_it_ends(program: Program, training: Training) -> None:
    def is_over() -> bool:
        program.press_ctrl_c()
        return program.is_over()

    assert within(LIMIT_S, is_over), training.name


@pytest.mark.slurm
@pytest.mark.soak
@some_and_all
def test_srun(table: Table, slurm_cluster: SlurmCluster, wholly: bool) -> None:
    cells = (
        Cell("SIGUSR1", USR1, STOPPED, why="SIGUSR1", is_quick=True),
        Cell("SIGTERM", TERM, 137, is_saved=False, is_quick=True),
        Cell("scancel", scancel(slurm_cluster), STOPPED, why="SIGTERM", is_quick=True),
        Cell("scancel and no time", scancel(slurm_cluster), 137, is_saved=False),
        Cell("scancel USR1", scancel(slurm_cluster, "--signal=USR1"), STOPPED, why="SIGUSR1"),
        Cell("one Ctrl-C", ctrl_c_then_usr1, STOPPED, why="SIGUSR1"),
        Cell("Ctrl-C again and again", ctrl_c_until_it_ends, 137, is_saved=False),
        TIME_LIMIT,
    )

    def start(training: Training, options: Sequence[str]) -> Program:
        srun = ["srun", "-N2", "-n2", f"--job-name={training.name}", UNISONO]
        return Program([*srun, *training.command(*options)], slurm_cluster.environment)

    table.play(Row("srun", 2, start), cells, wholly)


def batch_row(cluster: SlurmCluster, name: str, *options: str) -> Row:
    def start(training: Training, more: Sequence[str]) -> AbstractContextManager[Started]:
        command = shlex.join(["srun", UNISONO, *training.command(*more)])
        script = f"code=0; {command} || code=$?; echo srun gave $code; exit $code"
        return nullcontext(cluster.submit(script, "-N2", "-n2", f"--job-name={training.name}", *options))

    return Row(name, 2, start)


@pytest.mark.slurm
@pytest.mark.soak
@some_and_all
def test_sbatch(table: Table, slurm_cluster: SlurmCluster, wholly: bool) -> None:
    cells = (
        Cell("scancel", scancel(slurm_cluster), None, why="SIGTERM", is_quick=True),
        replace(TIME_LIMIT, is_quick=True),
        Cell("scancel and no time", scancel(slurm_cluster), None, is_saved=False),
        Cell("scancel TERM", scancel(slurm_cluster, "--signal=TERM"), STOPPED, why="SIGTERM"),
        Cell("scancel USR1", scancel(slurm_cluster, "--signal=USR1"), STOPPED, why="SIGUSR1"),
        Cell("scancel INT", scancel(slurm_cluster, "--signal=INT"), STOPPED, why="Ctrl-C"),
    )
    table.play(batch_row(slurm_cluster, "sbatch"), cells, wholly)


@pytest.mark.slurm
@pytest.mark.soak
def test_the_end_of_a_slurm_job(table: Table, slurm_cluster: SlurmCluster) -> None:
    """By our clock, and where a step takes too long for that, by what SLURM sends, up to half a minute later."""
    cells = (
        Cell("by the clock", nothing, STOPPED, why="end of SLURM job", pace_s=1.0),
        Cell("by SLURM", nothing, None, why="SIGTERM"),
    )
    table.play(batch_row(slurm_cluster, "end_of_job", "--time=1"), cells, wholly=True)
