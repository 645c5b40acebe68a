"""Two hundred strangers at every listening port of every launcher, with few files to open: the job ends as it should, alone.

Each job is slow until it is told to go on, so that all of them come while it works.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.ranks.siege import besiege, listening_ports, marked, with_few_files
from tests.system.ports import free_port
from tests.system.processes import Outcome, Program, plain_environment, within
from tests.system.slurm import SlurmCluster
from tests.system.studies import all_ended_once, records, written_task
from unisono.tuning.study.study import BEGAN, COMPLETE

BIN = Path(sys.executable).parent
PYTHON, UNISONO, MPIRUN, TORCHRUN = (str(BIN / name) for name in ("python", "unisono", "mpirun", "torchrun"))
PROGRAMS = Path(__file__).parent / "programs"
TASK, LOOP, HOROVOD = (str(PROGRAMS / f"besieged{name}.py") for name in ("_task", "", "_horovod"))
ELASTIC_HOROVOD = str(PROGRAMS / "elastic_train.py")
MPI = (MPIRUN, *(("--allow-run-as-root",) if os.geteuid() == 0 else ()), "--oversubscribe", "-n", "2")
SRUN = ("srun", "-N2", "-n2")
NUM_SAMPLES, NUM_STEPS, NUM_EPOCHS, NUM_TRIALS = 1258, 10, 80, 4
START_S = 120.0
LIMIT_S = 150.0
END_S = 10.0

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]


def torchrun() -> tuple[str, ...]:
    return (TORCHRUN, "--nproc-per-node", "2", f"--master-port={free_port()}")


def under_siege(
    command: Sequence[str], folder: Path, is_at_work: Callable[[], bool], environment: Mapping[str, str], go: Callable[[], object]
) -> Outcome:
    """Blocking: a job that must live through it and then end well."""
    harm = folder / "harm"
    with (
        marked({**environment, "BESIEGED_GO": str(folder / "go")}) as (mark, env),
        Program(with_few_files(command), env) as program,
    ):
        assert within(START_S, lambda: program.is_over() or is_at_work()) and is_at_work(), program.finish(1.0)
        ports = besiege(mark, 24, str(harm), program.is_over)
        print(*(f"{address}: {whose}" for address, whose in sorted(ports.items())), sep="\n")
        assert not program.is_over(), f"it ended under siege at {ports}: {program.finish(1.0)}"
        go()
        done = program.finish(LIMIT_S)
    assert done.code == 0, f"besieged at {ports}: {done}"
    assert within(END_S, lambda: not listening_ports(mark)), f"still there: {listening_ports(mark)}"
    assert not harm.exists(), "a pickle of a stranger was opened"
    return done


def train(folder: Path, *before: str, options: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The summary of a training that was besieged."""
    out = folder / "run"
    given = ("--epochs", str(NUM_EPOCHS), "--threads", "1", "--log-every", "1", "--out", str(out))
    command = [*before, UNISONO, "train", TASK, *given, *options]
    metrics = out / "metrics.jsonl"

    def is_at_work() -> bool:
        return metrics.exists() and metrics.read_text().count('"step"') > 3

    under_siege(command, folder, is_at_work, environment or plain_environment(), (folder / "go").touch)
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    assert (summary["reason"], summary["num_workers"], summary["num_samples"]) == ("finished", 2, NUM_EPOCHS * NUM_SAMPLES)
    return summary


def undisturbed(folder: Path, options: Sequence[str]) -> dict[str, Any]:
    """The summary of a training that nobody attacks."""
    (folder / "go").touch()
    given = ("--epochs", str(NUM_EPOCHS), "--threads", "1", "--out", str(folder / "quiet"))
    with Program([UNISONO, "train", TASK, *given, *options], {**plain_environment(), "BESIEGED_GO": str(folder / "go")}) as program:
        done = program.finish(LIMIT_S)
    assert done.code == 0, str(done)
    found: dict[str, Any] = json.loads((folder / "quiet" / "summary.json").read_text())
    return found


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return undisturbed(tmp_path_factory.mktemp("quiet"), ("-n", "2"))


def check_same(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    assert all(found[name] == expected[name] for name in ("weights_sha256", "metrics", "steps"))


# ---- a training --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["shm", "gloo"])
def test_our_launcher(engine: str, expected: Mapping[str, Any], tmp_path: Path) -> None:
    check_same(train(tmp_path, options=("-n", "2", "--engine", engine)), expected)


@pytest.mark.parametrize("engine", ["shm", "gloo", "mpi"])
def test_mpirun(engine: str, expected: Mapping[str, Any], tmp_path: Path) -> None:
    check_same(train(tmp_path, *MPI, options=("--engine", engine)), expected)


def test_torchrun(expected: Mapping[str, Any], tmp_path: Path) -> None:
    check_same(train(tmp_path, *torchrun(), "--no-python"), expected)


@pytest.mark.slurm
def test_srun(slurm_cluster: SlurmCluster, expected: Mapping[str, Any], tmp_path: Path) -> None:
    check_same(train(tmp_path, *SRUN, environment=slurm_cluster.environment), expected)


@pytest.mark.parametrize("engine", ["shm", "gloo"])
@pytest.mark.parametrize("algorithm", ["gem", "easgd"])
def test_a_server_and_two_workers(algorithm: str, engine: str, tmp_path: Path) -> None:
    options = ("--algorithm", algorithm)
    found = train(tmp_path, options=("-n", "3", "--engine", engine, *options))
    repeated = undisturbed(tmp_path, ("--simulate", "2", "--replay", str(tmp_path / "run"), *options))
    assert found["weights_sha256"] == repeated["weights_sha256"]


def test_workers_that_may_join(tmp_path: Path) -> None:
    options = ("--algorithm", "gem", "--elastic", "2")
    found = train(tmp_path, options=options)
    joined = {line for line in (tmp_path / "run" / "arrivals.txt").read_text().split() if line.isdigit()}
    assert joined == {"0", "1"}
    repeated = undisturbed(tmp_path, (*options, "--replay", str(tmp_path / "run")))
    assert found["weights_sha256"] == repeated["weights_sha256"]


# ---- a program with a loop of its own ----------------------------------------------------------------------------------


def loop(folder: Path, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    def is_at_work() -> bool:
        return all((folder / f"count-{rank}").exists() for rank in (0, 1))

    done = under_siege(command, folder, is_at_work, environment or plain_environment(), (folder / "go").touch)
    assert done.output.count("sums were right") == 2, str(done)


@pytest.mark.parametrize("engine", ["shm", "gloo"])
def test_a_program_by_our_launcher(engine: str, tmp_path: Path) -> None:
    loop(tmp_path, (UNISONO, "run", "-n", "2", LOOP, str(tmp_path), engine))


def test_a_program_by_torchrun(tmp_path: Path) -> None:
    loop(tmp_path, (*torchrun(), LOOP, str(tmp_path)))


def test_a_program_by_mpirun(tmp_path: Path) -> None:
    loop(tmp_path, (*MPI, PYTHON, LOOP, str(tmp_path)))


@pytest.mark.slurm
def test_a_program_by_srun(slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    loop(tmp_path, (*SRUN, PYTHON, LOOP, str(tmp_path)), slurm_cluster.environment)


def test_horovodrun(tmp_path: Path) -> None:
    loop(tmp_path, (UNISONO, "horovodrun", "-np", "2", PYTHON, HOROVOD, str(tmp_path)))


def test_elastic_horovodrun(tmp_path: Path) -> None:
    story, script = tmp_path / "story", tmp_path / "discover"
    story.touch()
    script.write_text("#!/bin/sh\necho localhost:2\n")
    script.chmod(0o755)
    job = (PYTHON, ELASTIC_HOROVOD, str(story), json.dumps({"until": str(tmp_path / "go")}))
    words = ("horovodrun", "-np", "2", "--min-np", "2", "--max-np", "2", "--host-discovery-script", str(script))
    under_siege(
        (UNISONO, *words, *job), tmp_path, lambda: '"epochs"' in story.read_text(), plain_environment(), (tmp_path / "go").touch
    )
    events = [json.loads(line) for line in story.read_text().splitlines()]
    assert [event["size"] for event in events if "begins" in event] == [2, 2], events
    done = [event for event in events if "done" in event]
    assert len(done) == 2 and all(event["used"] == 120 * event["epochs"] for event in done), events


# ---- a search ----------------------------------------------------------------------------------------------------------


def search(folder: Path, *before: str, options: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> None:
    """Each trial waits in its first step until the file `hold` is gone, then ends with the number that its settings give."""
    study, hold = folder / "study", folder / "hold"
    hold.touch()
    given = ("--trials", str(NUM_TRIALS), "--epochs", "1", "--threads", "1", "--search", "random", "--out", str(study))
    command = [*before, UNISONO, "tune", written_task(folder), *given, *options]

    def is_at_work() -> bool:
        return study.exists() and len({one["who"].partition("/")[2] for one in records(study, BEGAN)}) == 2

    done = under_siege(command, folder, is_at_work, environment or plain_environment(), hold.unlink)
    ended = all_ended_once(study, NUM_TRIALS)
    assert {one.state for one in ended.values()} == {COMPLETE}, str(done)
    quiet = folder / "quiet"
    with Program([UNISONO, "tune", written_task(folder), *given[:-1], str(quiet), "-n", "1"], plain_environment()) as program:
        assert (alone := program.finish(LIMIT_S)).code == 0, str(alone)
    alone_ended = all_ended_once(quiet, NUM_TRIALS)
    assert {number: one.values for number, one in ended.items()} == {number: one.values for number, one in alone_ended.items()}


def test_tune_by_our_launcher(tmp_path: Path) -> None:
    search(tmp_path, options=("-n", "2"))


def test_tune_in_ranks_of_our_launcher(tmp_path: Path) -> None:
    search(tmp_path, UNISONO, "run", "-n", "2", "--")


def test_tune_by_mpirun(tmp_path: Path) -> None:
    search(tmp_path, *MPI)


def test_tune_by_torchrun(tmp_path: Path) -> None:
    search(tmp_path, *torchrun(), "--no-python")


@pytest.mark.slurm
def test_tune_by_srun(slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    secret = {"UNISONO_TOKEN": "shared by nodes without a common home"}
    search(tmp_path, *SRUN, environment={**slurm_cluster.environment, **secret})
