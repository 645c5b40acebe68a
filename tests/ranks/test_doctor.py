"""`unisono doctor` as users start it: alone, under each launcher, and where ranks or packages are missing.

It is forked from a process that has loaded PyTorch where no test of this file needs another beginning of its process."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.system.fork_server import ForkServer
from tests.system.hosts import INTERFACE, Host
from tests.system.processes import Outcome, plain_environment, run_together
from tests.system.slurm import SlurmCluster
from unisono.cluster.rendezvous import derived_port, job_token

BIN = Path(sys.executable).parent
PYTHON, UNISONO, MPIRUN, TORCHRUN = (str(BIN / name) for name in ("python", "unisono", "mpirun", "torchrun"))
AS_ROOT = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
LIMIT_S = 90.0
DOCTOR = (PYTHON, "-m", "unisono", "doctor")


@pytest.fixture
def forked(fork_server: ForkServer) -> list[str]:
    """The same command, forked."""
    return fork_server.stand_in(DOCTOR[1:])


PATIENT_FOR_3_S = """
import sys
from unisono.cli import main
from unisono.doctor import all_ranks
all_ranks.MEET_LIMIT_S = 3.0
sys.exit(main())
"""
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from unisono.cli import main
sys.exit(main())
"""
ENGINE_HANGS = """
import sys, threading
from unisono.cli import main
from unisono.doctor import all_ranks, engines
all_ranks.ENGINES_LIMIT_S = 1.0
engines.try_engines = lambda at, ranks: threading.Event().wait()
sys.exit(main())
"""


def run(*command: str, environment: Mapping[str, str] | None = None) -> Outcome:
    return run_together([command], environment or plain_environment(), LIMIT_S)[0]


def read(outcome: Outcome, prefix: str = "") -> dict[str, Any]:
    """The one JSON object in what was printed, whatever else launchers say around it."""
    lines = [line.removeprefix(prefix) for line in outcome.output.splitlines() if line.startswith(prefix)]
    text = "\n".join(lines)
    try:
        whole, _ = json.JSONDecoder().raw_decode(text[text.index("{\n") :])
    except ValueError as error:
        raise AssertionError(f"no JSON in the output: {outcome}") from error
    assert isinstance(whole, dict)
    return whole


def findings(whole: Mapping[str, Any], check: str, level: str | None = None) -> list[dict[str, str]]:
    return [one for one in whole["findings"] if one["check"] == check and level in (None, one["level"])]


def rank_of(size: int, rank: int, job: str) -> dict[str, str]:
    """The environment in which a rank believes to be one of `size`, as `unisono run` makes it."""
    token = job_token("test of doctor", job, str(os.getpid()))
    values = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_SIZE": size, "NODE_RANK": 0, "NUM_NODES": 1}
    place = {f"UNISONO_{name}": str(value) for name, value in values.items()}
    meeting = {"UNISONO_LAUNCH": token, "UNISONO_TOKEN": token, "UNISONO_RENDEZVOUS": f"127.0.0.1:{derived_port(token)}"}
    return {**plain_environment(), **place, **meeting}


def run_ranks(program: Sequence[str], environments: Sequence[Mapping[str, str]]) -> list[tuple[int, str, str]]:
    """Code, output and errors of the same program in each environment, at the same time."""
    processes = [
        subprocess.Popen(program, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for env in environments
    ]
    try:
        outputs = [process.communicate(timeout=LIMIT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [(process.returncode, *output) for process, output in zip(processes, outputs, strict=True)]


def test_alone_it_explains_itself_and_measures_between_local_ranks() -> None:
    outcome = run(*DOCTOR, environment={**plain_environment(), "UNISONO_ENGINE": "single"})  # which is right for one process
    assert outcome.code == 0, str(outcome)
    lines = outcome.output.splitlines()
    assert lines[0] == "launcher"
    assert [line.split()[0] for line in lines[1:8]] == ["unisono", "torchrun", "openmpi", "pmi", "slurm", "tf_config", "*"]
    assert "UNISONO_RANK is not set" in lines[1]
    assert lines[7].split()[:3] == ["*", "local", "yes"]
    for engine in ("shm", "gloo"):
        assert any(f"bandwidth  engine {engine}: " in line and "between ranks 0 and 1" in line for line in lines), str(outcome)
    assert "\x1b" not in outcome.output, "colours belong on a terminal"


def test_our_launcher() -> None:
    outcome = run(UNISONO, "run", "-n", "2", "-m", "unisono", "doctor", "--json", "-n", "2")
    whole = read(outcome, "[0] ")
    assert outcome.code == 0 and whole["ok"], str(outcome)
    assert "[1] " not in outcome.output, "rank 0 speaks for all"
    assert outcome.output.count('"verdicts"') == 1
    assert [(facts["rank"], facts["size"], facts["launcher"]) for facts in whole["ranks"]] == [(0, 2, "unisono"), (1, 2, "unisono")]
    assert len({facts["pid"] for facts in whole["ranks"]}) == 2
    assert [verdict["resolver"] for verdict in whole["verdicts"] if verdict["counts"]] == ["unisono"]
    assert [one["fact"] for one in findings(whole, "ranks")] == ["2 processes, started by unisono, as requested (-n)"]
    assert "engine shm (one machine)" in whole["origin"]
    assert [(one["engine"], one["ranks"], one["chosen"]) for one in whole["measurements"]] == [
        ("shm", [0, 1], True),
        ("gloo", [0, 1], False),
    ]
    assert all(one["gb_per_s"] > 0 and one["latency_us"] > 0 and not one["error"] for one in whole["measurements"])


def test_mpirun_and_a_count_that_differs(forked: list[str]) -> None:
    outcome = run(MPIRUN, *AS_ROOT, "--oversubscribe", "-n", "2", *forked, "--json", "-n", "4", "--no-bandwidth")
    whole = read(outcome)
    assert outcome.code == 1 and not whole["ok"], str(outcome)
    assert outcome.output.count('"verdicts"') == 1
    (count,) = findings(whole, "ranks", "FAIL")
    assert "2 processes, started by openmpi, but -n requests 4" in count["fact"]
    assert "mpirun -n 4" in count["remedy"]
    assert [(facts["mpi"]["rank"], facts["mpi"]["size"]) for facts in whole["ranks"]] == [(0, 2), (1, 2)]
    assert whole["ranks"][0]["mpi"]["launcher"].startswith("Open MPI")
    assert findings(whole, "mpi", "ok"), str(outcome)
    assert whole["measurements"] == []


def test_the_engine_that_was_asked_for_is_tried() -> None:
    """Under mpirun with engine mpi this process starts MPI itself, so that no child may try it before."""
    environment = {**plain_environment(), "UNISONO_ENGINE": "mpi"}
    outcome = run(MPIRUN, *AS_ROOT, "--oversubscribe", "-n", "2", *DOCTOR, "--json", environment=environment)
    whole = read(outcome)
    assert outcome.code == 0, str(outcome)
    assert [one["engine"] for one in whole["measurements"]] == ["mpi", "gloo"], str(outcome)
    assert [facts["mpi"]["size"] for facts in whole["ranks"]] == [2, 2]


def test_torchrun() -> None:
    outcome = run(TORCHRUN, "--standalone", "--nproc-per-node", "2", "-m", "unisono", "doctor", "--json", "--no-bandwidth")
    whole = read(outcome)
    assert outcome.code == 0, str(outcome)
    assert [verdict["resolver"] for verdict in whole["verdicts"] if verdict["counts"]] == ["torchrun"]
    assert len(whole["ranks"]) == 2


def test_ranks_requested_without_a_launcher(forked: list[str]) -> None:
    outcome = run(*forked, "--json", "-n", "2", "--no-bandwidth")
    whole = read(outcome)
    assert outcome.code == 0, str(outcome)
    (count,) = findings(whole, "ranks", "warn")
    assert "2 processes, but this process is alone" in count["fact"]
    assert (whole["size"], whole["started"], len(whole["ranks"])) == (1, 2, 2)


def test_a_rank_that_never_comes_is_named() -> None:
    program = (PYTHON, "-c", PATIENT_FOR_3_S, "doctor", "--json")
    zero, one = run_ranks(program, [rank_of(3, 0, "missing 2"), rank_of(3, 1, "missing 2")])
    whole = json.loads(zero[1])
    (missing,) = findings(whole, "meeting", "FAIL")
    assert "rank 2 of 3 did not connect" in missing["fact"], missing
    assert missing["remedy"]
    assert zero[0] == 1
    assert one == (0, "", "")


def test_rank_0_that_never_comes_is_named_by_the_others() -> None:
    ((code, printed, complaints),) = run_ranks((PYTHON, "-c", PATIENT_FOR_3_S, "doctor"), [rank_of(2, 1, "missing 0")])
    assert (code, printed) == (1, "")
    assert complaints.startswith("unisono doctor: FAIL rank 1 found no rank 0 of this job at 127.0.0.1"), complaints
    assert complaints.count("\n") == 1


def test_without_torch_it_still_reports() -> None:
    outcome = run(PYTHON, "-c", WITHOUT_TORCH, "doctor", "--json", "--no-bandwidth")
    whole = read(outcome)
    assert outcome.code == 1
    (software,) = findings(whole, "software", "FAIL")
    assert "it is not installed" in software["fact"] and "pip install torch" in software["remedy"]
    assert findings(whole, "threads")


def test_ranks_without_torch_meet_nevertheless() -> None:
    environments = [rank_of(2, rank, "no torch") for rank in (0, 1)]
    zero, one = run_ranks((PYTHON, "-c", WITHOUT_TORCH, "doctor", "--json"), environments)
    whole = json.loads(zero[1])
    assert (zero[0], len(whole["ranks"]), one) == (1, 2, (0, "", ""))
    assert "ranks 0-1" in findings(whole, "software", "FAIL")[0]["fact"]


def test_half_set_variables_are_a_finding(forked: list[str]) -> None:
    outcome = run(*forked, "--json", environment={**plain_environment(), "OMPI_COMM_WORLD_RANK": "0"})
    whole = read(outcome)
    assert outcome.code == 1
    (error,) = findings(whole, "ranks", "FAIL")
    assert "incomplete" in error["fact"] and "start with mpirun" in error["remedy"]
    assert [verdict["answer"] for verdict in whole["verdicts"] if verdict["resolver"] == "openmpi"] == ["error"]
    assert not any(verdict["counts"] for verdict in whole["verdicts"])


@pytest.mark.parametrize("wrong", ["PMI_RANK", "MPI_LOCALNRANKS"])
def test_variables_that_are_no_numbers_do_not_stop_it(forked: list[str], wrong: str) -> None:
    variables = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2", wrong: "x"}
    outcome = run(*forked, "--json", "--no-bandwidth", environment={**plain_environment(), **variables})
    whole = read(outcome)
    assert outcome.code == 1
    said = {verdict["resolver"]: (verdict["answer"], verdict["reason"]) for verdict in whole["verdicts"]}
    assert list(said) == ["unisono", "torchrun", "openmpi", "pmi", "slurm", "tf_config", "local"]
    assert said["pmi"] == ("error", f"{wrong} must be a whole number; received 'x' (environment); correct or unset it")
    (error,) = findings(whole, "ranks", "FAIL")
    assert error["fact"] == f"{wrong} must be a whole number; received 'x' (environment)"
    assert error["remedy"] == "correct or unset it"


def test_an_engine_that_cannot_be_opened_is_a_finding(forked: list[str]) -> None:
    environment = {**plain_environment(), "UNISONO_ENGINE": "nccl", "CUDA_VISIBLE_DEVICES": ""}
    outcome = run(UNISONO, "run", "-n", "2", *forked, "--json", environment=environment)
    whole = read(outcome, "[0] ")
    assert outcome.code == 1, str(outcome)
    (failure,) = findings(whole, "bandwidth", "FAIL")
    assert "nccl" in failure["fact"] and failure["remedy"]
    assert [one["engine"] for one in whole["measurements"] if not one["error"]] == ["gloo"]


def test_an_engine_that_hangs_is_left_and_named() -> None:
    """A library that never comes back, as MPI does between nodes that do not reach each other."""
    environments = [rank_of(2, rank, "hangs") for rank in (0, 1)]
    zero, one = run_ranks((PYTHON, "-c", ENGINE_HANGS, "doctor", "--json"), environments)
    whole = json.loads(zero[1])
    (stuck,) = findings(whole, "meeting", "FAIL")
    assert "an engine did not finish on rank 0 within 1 s" in stuck["fact"] and "threading.py" in stuck["fact"]
    assert "UNISONO_ENGINE=gloo" in stuck["remedy"]
    assert (zero[0], len(whole["ranks"]), one[:2]) == (1, 2, (0, ""))


def test_on_a_terminal_there_is_colour_and_progress() -> None:
    controller, terminal = os.openpty()
    try:
        environment = {**plain_environment(), "TERM": "xterm", "NO_COLOR": ""}
        process = subprocess.Popen([*DOCTOR, "--no-bandwidth"], env=environment, stdout=terminal, stderr=terminal)
        os.close(terminal)
        shown = b""
        with suppress(OSError):  # Linux says so when the last writer has closed its end
            while part := os.read(controller, 65536):
                shown += part
        assert process.wait(LIMIT_S) == 0
    finally:
        os.close(controller)
    assert b"\x1b[1mlauncher\x1b[0m" in shown
    assert b"gathering facts ...\r\x1b[K" in shown, "the line is cleared before the report goes on"
    assert b"\x1b[32mok  \x1b[0m" in shown


def test_an_interrupt_ends_it_and_the_ranks_that_it_started() -> None:
    process = subprocess.Popen(
        DOCTOR, env=plain_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        for _ in range(8):
            process.stdout.readline()  # from here on it starts ranks and waits for them
        os.killpg(process.pid, signal.SIGINT)
        _, complaints = process.communicate(timeout=LIMIT_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 130
    assert complaints == ""


@pytest.mark.parametrize("options", [(), ("--json", "--no-bandwidth")])
def test_a_reader_that_leaves_is_no_error(options: Sequence[str]) -> None:
    """As in `unisono doctor | head -1`."""
    process = subprocess.Popen(
        [*DOCTOR, *options], env=plain_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None and process.stderr is not None
        if not options:
            assert process.stdout.readline() == "launcher\n"
        process.stdout.close()
        try:
            assert process.wait(LIMIT_S) == 128 + signal.SIGPIPE
        finally:
            process.kill()
        assert process.stderr.read() == ""


@pytest.mark.hosts
def test_two_hosts(two_hosts: list[Host]) -> None:
    """Between hosts the engine is gloo, over the interface through which they met."""
    rendezvous = f"{two_hosts[0].address}:29400"
    start = (UNISONO, "run", "-n", "1", "--nodes", "2", "--rendezvous", rendezvous)
    doctor = ("-m", "unisono", "doctor", "--json")
    commands = [host.command(*start, "--node-rank", str(node), *doctor) for node, host in enumerate(two_hosts)]
    first, second = run_together(commands, plain_environment(), LIMIT_S)
    assert (first.code, second.code) == (0, 0), f"{first}\n{second}"
    assert '"verdicts"' not in second.output, "rank 0 speaks for all"
    whole = read(first, "[0] ")
    assert [(facts["node"], facts["address"]) for facts in whole["ranks"]] == [
        ("node 0", two_hosts[0].address),
        ("node 1", two_hosts[1].address),
    ]
    (measured,) = whole["measurements"]
    assert (measured["engine"], measured["chosen"], measured["error"]) == ("gloo", True, "")
    used = [one["fact"] for one in findings(whole, "network") if one["fact"].startswith("gloo uses")]
    assert len(used) == 2 and all(f"gloo uses {INTERFACE} ({two_hosts[0].address[:6]}" in fact for fact in used), used
    assert f"from node 0 to node 1, over {INTERFACE}" in findings(whole, "bandwidth")[0]["fact"]


@pytest.mark.slurm
def test_srun(slurm_cluster: SlurmCluster, forked: list[str]) -> None:
    """Two ranks on one node and one on another: one report, grouped by node, with a pair inside and a pair between."""
    outcome = run("srun", "-N2", "-n3", *forked, "--json", environment=slurm_cluster.environment)
    whole = read(outcome)
    assert outcome.code == 0, str(outcome)
    assert outcome.output.count('"verdicts"') == 1
    assert [verdict["resolver"] for verdict in whole["verdicts"] if verdict["counts"]] == ["slurm"]
    nodes = [facts["node"] for facts in whole["ranks"]]
    assert sorted(set(nodes)) == ["node 0", "node 1"]
    pairs = {tuple(one["ranks"]) for one in whole["measurements"]}
    assert pairs == {(0, 1), (0, nodes.index("node 1"))}
    assert {one["node"] for one in findings(whole, "threads")} == {"node 0", "node 1"}


@pytest.mark.slurm
def test_a_batch_script_learns_that_it_is_not_a_rank(slurm_cluster: SlurmCluster, forked: list[str]) -> None:
    job = slurm_cluster.submit(shlex.join([*forked, "--json", "--no-bandwidth"]), "-N2", "-n4")
    outcome = job.finish(LIMIT_S)
    whole = read(outcome)
    assert outcome.code == 0, str(outcome)
    (note,) = findings(whole, "ranks", "warn")
    assert "not a task of a step" in note["fact"] and "srun" in note["remedy"]
