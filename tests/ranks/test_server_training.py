"""A server and its workers as real processes: stopped, killed, resumed, in groups; and repeated, bit for bit, from their record."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
from collections import Counter
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.system.fork_server import ForkServer
from unisono.algorithms.server.ledger import Ledger

PROGRAM = Path(__file__).parent / "programs" / "server_training.py"
TRAIN = ["-m", "unisono.cli", "train", "task.py", "--threads", "1"]
STOPPED = 75
OF_TIME = ("updates_per_s", "waiting", "server_load", "virtual_s")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(PROGRAM, "task.py")


def train(
    fork_server: ForkServer, out: str, num_processes: int, *options: str, code: int = 0, plan: str = "", engine: str = "shm"
) -> str:
    if plan:
        Path("plan").write_text(plan)
    engine = engine if num_processes > 1 else "single"
    ended = fork_server.run([*TRAIN, "--out", out, *options], num_processes, engine)
    assert ended.exit_code == code, ended
    assert not Path("plan").exists()
    return ended.output


def found(out: str) -> dict[str, Any]:
    """All but the times."""
    summary = json.loads(Path(out, "summary.json").read_text())
    assert summary["replicas_equal"]
    history = [
        {"step": row["step"], "lr": row["lr"], **{name: value for name, value in row["metrics"].items() if name not in OF_TIME}}
        for row in summary["history"]
    ]
    return {"weights": summary["weights_sha256"], "steps": summary["steps"], "reason": summary["reason"], "history": history}


GEM = ("--algorithm", "gem")
EASGD = ("--algorithm", "easgd", "--set", "algorithm.period=3", "--set", "optimizer=adam")
DOWNPOUR = ("--algorithm", "downpour", "--set", "algorithm.push_every=2", "--set", "algorithm.pull_every=3")


def test_gem_of_four_workers_is_repeated(fork_server: ForkServer) -> None:
    """Saved now and then, stopped, resumed; repeated with other saves and with none, by processes and by virtual workers."""
    train(fork_server, "run", 5, *GEM, "--checkpoint-every", "7", "--max-steps", "30", code=STOPPED)
    train(fork_server, "run", 5, *GEM)
    train(fork_server, "again", 5, *GEM, "--checkpoint-every", "11", "--replay", "run")
    train(fork_server, "virtual", 1, *GEM, "--simulate", "4", "--replay", "run")
    assert found("again") == found("run") == found("virtual")
    assert Path("run/arrivals.txt").read_text() == Path("again/arrivals.txt").read_text()


def test_a_virtual_replay_evaluates_with_the_same_bits(fork_server: ForkServer) -> None:
    """Validation and test data are more than one batch of an evaluation; the files of equal weights are equal."""
    options = (*GEM, "--global-batch", "96", "--set", "data.num=192", "--set", "data.test=190", "--best", "val_loss")
    train(fork_server, "run", 3, *options)
    train(fork_server, "virtual", 1, *options, "--simulate", "2", "--replay", "run")
    assert found("virtual") == found("run")
    metrics = [json.loads(Path(out, "summary.json").read_text())["metrics"] for out in ("run", "virtual")]
    assert "test_loss" in metrics[0]
    names = [name for name in metrics[0] if "loss" in name]
    assert [metrics[0][name] for name in names] == [metrics[1][name] for name in names]
    for name in ("weights.safetensors", "best.safetensors"):
        assert Path("run", name).read_bytes() == Path("virtual", name).read_bytes()


def steps_of(out: str) -> list[dict[str, Any]]:
    rows = map(json.loads, Path(out, "metrics.jsonl").read_text().splitlines())
    return [
        {name: row[name] for name in ("step", "epoch", "step_in_epoch", "loss", "lr")} for row in rows if row["event"] == "step"
    ]


def test_steps_while_the_server_evaluates_belong_to_the_next_epoch(fork_server: ForkServer) -> None:
    """In the history too: an epoch has the step and the learning rate with which it ended."""
    options = (*GEM, "--log-every", "1")
    train(fork_server, "run", 3, *options, plan="evaluate-late")
    assert [row["step"] for row in found("run")["history"]] == [30, 60, 90]
    train(fork_server, "again", 1, *options, "--simulate", "2", "--replay", "run")
    assert found("again") == found("run")
    assert steps_of("again") == steps_of("run")
    assert [row["step_in_epoch"] for row in steps_of("run")] == [*range(30)] * 3


@pytest.mark.parametrize("options", [EASGD, DOWNPOUR], ids=["easgd", "downpour"])
def test_a_vote_to_stop_and_a_target(fork_server: ForkServer, options: tuple[str, ...]) -> None:
    """Batch-norm and an optimiser of each worker; one of them hears the signal, and the next attempt reaches the target."""
    options = (*options, "--set", "model.norm=true", "--target", "1.5", "--epochs", "20")
    assert "run the same command to resume" in train(fork_server, "run", 3, *options, code=STOPPED, plan="stop 5")
    assert found("run")["steps"] < 100
    shutil.copytree("run", "stopped")
    train(fork_server, "run", 3, *options)
    assert found("run")["reason"] == "target reached"
    train(fork_server, "again", 1, *options, "--simulate", "2", "--replay", "run")
    assert found("again") == found("run")
    train(fork_server, "again", 1, *options, "--simulate", "2", "--replay", "stopped", "--fresh", code=STOPPED)
    assert found("again") == found("stopped")


def test_a_stop_request_reaches_the_server_while_it_evaluates(fork_server: ForkServer) -> None:
    """The epoch's evaluation is made by the next attempt, of later server weights, and early stopping counts it. A repetition makes
    it where the epoch ended, so of that row only the loss is the same, and it may see earlier that nothing improves."""
    options = (*GEM, "--set", "data.num=200", "--patience", "1", "--lr", "0.3", "--epochs", "30")
    train(fork_server, "run", 3, *options, code=STOPPED, plan="stop-evaluating")
    first = found("run")
    assert first["steps"] >= 25
    assert not first["history"]
    train(fork_server, "run", 3, *options)
    assert found("run")["reason"] == "stopped early"
    train(fork_server, "again", 1, *options, "--simulate", "2", "--replay", "run")
    (again_first, *again_rest), (run_first, *run_rest) = (found(run).pop("history") for run in ("again", "run"))
    assert again_first["loss"] == run_first["loss"]
    assert again_rest
    assert again_rest == run_rest[: len(again_rest)]
    assert all(found("again")[what] == found("run")[what] for what in ("weights", "steps", "reason"))


def test_a_simulation_does_not_depend_on_saves_and_stops(fork_server: ForkServer) -> None:
    """One without a save is the reference: its weights, virtual times and order of calls. Real workers may take over from it."""
    options = (*DOWNPOUR, "--set", "model.norm=true", "--simulate", "4")
    stop = ("--checkpoint-every", "3", "--max-steps")
    train(fork_server, "run", 1, *options)
    train(fork_server, "saved", 1, *options, "--checkpoint-every", "3")
    assert found("saved") == found("run"), "saved, and not stopped"
    train(fork_server, "stopped", 1, *options, *stop, "31", code=STOPPED)
    shutil.copytree("stopped", "taken-over")
    train(fork_server, "stopped", 1, *options, *stop, "80", code=STOPPED)
    train(fork_server, "stopped", 1, *options)
    assert found("stopped") == found("run")
    summaries = [json.loads(Path(out, "summary.json").read_text()) for out in ("run", "stopped")]
    times = [[(row["metrics"]["virtual_s"], row["metrics"]["waiting"]) for row in one["history"]] for one in summaries]
    assert times[0] == times[1] and 0 < times[0][0][0] < times[0][2][0]
    assert Path("stopped/arrivals.txt").read_text() == Path("run/arrivals.txt").read_text()
    assert "the workers are not those of the checkpoint" in train(fork_server, "taken-over", 5, *options[:-2], "--accept-changes")
    assert found("taken-over")["reason"] == "finished"


def test_a_simulation_saves_between_two_rounds(fork_server: ForkServer) -> None:
    options = ("--algorithm", "easgd", "--set", "algorithm.synchronous=true", "--set", "algorithm.period=3", "--simulate", "4")
    train(fork_server, "run", 1, *options)
    train(fork_server, "stopped", 1, *options, "--checkpoint-every", "7", "--max-steps", "25", code=STOPPED)
    train(fork_server, "stopped", 1, *options, "--checkpoint-every", "1")
    assert found("stopped") == found("run")


def test_a_run_resumes_with_another_number_of_workers(fork_server: ForkServer) -> None:
    train(fork_server, "run", 3, *GEM, "--max-steps", "20", code=STOPPED)
    told = train(fork_server, "run", 5, *GEM)
    assert "the batches hold other samples than before" in told
    assert "processes 3 before, 5 now; the result will differ in any case, as it depends on the order of calls" in told
    assert found("run")["reason"] == "finished"
    told = train(fork_server, "again", 5, *GEM, "--replay", "run", code=2)
    assert "cannot be repeated (--replay): it was resumed with other batches" in told


def test_a_group_is_one_worker_of_its_batch(fork_server: ForkServer) -> None:
    """Processes read disjoint samples, each once in an epoch, and move as one worker would that reads all of them."""
    train(fork_server, "groups", 5, *EASGD, "--group", "2")
    read = [path.read_text().split() for path in Path().glob("samples-*")]
    assert len(read) == 4 and Counter(one for own in read for one in own) == {str(number): 3 for number in range(120)}
    few, as_few, many, as_many = sorted(map(len, read))  # how the two workers share the batches is a matter of time
    assert few == as_few and many == as_many and few + many == 180
    train(fork_server, "two", 3, *EASGD, "--replay", "groups")
    groups, two = (load_file(f"{out}/weights.safetensors") for out in ("groups", "two"))
    for name, value in two.items():
        np.testing.assert_allclose(groups[name], value, rtol=0, atol=1e-11)
    first = load_file(next(iter(Path("groups/checkpoints").glob("*/*.safetensors"))))
    assert first
    assert Path("groups/arrivals.txt").read_text() == Path("two/arrivals.txt").read_text()


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(GEM, id="gem"),
        pytest.param((*DOWNPOUR, "--set", "optimizer=adam"), id="downpour"),
        pytest.param(EASGD, id="easgd", marks=pytest.mark.soak),
        pytest.param(("--algorithm", "parameter_server", "--set", "optimizer=adam"), id="parameter_server", marks=pytest.mark.soak),
    ],
)
def test_several_servers_are_as_one(fork_server: ForkServer, options: tuple[str, ...]) -> None:
    """The same bits for any number of them, also where it changes on the way."""
    options = (*options, "--set", "model.norm=true")
    train(fork_server, "run", 4, *options, "--servers", "2", "--checkpoint-every", "5", "--max-steps", "8", code=STOPPED)
    train(fork_server, "run", 5, *options, "--servers", "3")
    summary = json.loads(Path("run/summary.json").read_text())
    assert (summary["num_servers"], summary["num_workers"]) == (3, 2)
    train(fork_server, "one", 3, *options, "--replay", "run")
    train(fork_server, "two", 4, *options, "--servers", "2", "--replay", "run", engine="gloo")
    assert found("one") == found("run") == found("two")


def test_several_servers_and_groups(fork_server: ForkServer) -> None:
    train(fork_server, "run", 6, *EASGD, "--servers", "2", "--group", "2")
    read = [path.read_text().split() for path in Path().glob("samples-*")]
    assert len(read) == 4 and Counter(one for own in read for one in own) == {str(number): 3 for number in range(120)}


def test_several_servers_and_a_loss_that_is_no_number(fork_server: ForkServer) -> None:
    options = (*DOWNPOUR, "--servers", "2", "--set", "optimizer=adam")
    assert "the loss or gradient of worker" in train(fork_server, "run", 4, *options, code=1, plan="nan 4")
    train(fork_server, "other", 4, *options, "--on-nan", "skip", plan="nan 4")
    assert json.loads(Path("other/summary.json").read_text())["num_skipped_updates"] == 1


def test_the_form_of_the_paper_is_warned_of_its_old_gradients(fork_server: ForkServer) -> None:
    paper = ("--set", "algorithm.optimizer_on=server", "--set", "algorithm.damping=off", "--set", "optimizer.momentum=0.9")
    told = train(fork_server, "run", 3, "--algorithm", "downpour", *paper)
    assert "Use damping=staleness and optimizer_on=worker (the defaults)" in told
    assert "updates old on average" not in train(fork_server, "again", 3, "--algorithm", "downpour")


def test_what_several_servers_cannot_do_is_refused(fork_server: ForkServer) -> None:
    at_server = ("--set", "algorithm.optimizer_on=server", "--set", "clip_norm=1.0")
    told = train(fork_server, "run", 4, *DOWNPOUR, "--servers", "2", *at_server, code=2)
    assert "clip_norm 1.0 needs the norm of the whole vector, but each of the 2 servers has only a slice of it (--servers)" in told
    assert "--servers has no effect with --algorithm allreduce, which has no server" in train(
        fork_server, "run", 2, "--servers", "2", code=2
    )
    assert "--servers 2 needs at least 3 processes; you started 2" in train(fork_server, "run", 2, *GEM, "--servers", "2", code=2)


def test_one_of_several_servers_is_signalled_then_killed(fork_server: ForkServer) -> None:
    """The second one, which decides nothing. A signal to it ends the run in good order, a death the whole job."""
    options = (*GEM, "--servers", "2", "--checkpoint-every", "5", "--epochs", "5000")
    for sent, expected in ((signal.SIGTERM, STOPPED), (signal.SIGKILL, 128 + signal.SIGKILL)):
        with fork_server.start([*TRAIN, "--out", "run", *options], 4, "shm") as group:
            before = {*Path("run/checkpoints").glob("*")}
            while not {*Path("run/checkpoints").glob("*")} - before:
                assert not group.is_over(), group.wait(10)
                sleep(0.02)
            os.kill(group.pids[1], sent)
            ended = group.wait(60)
            assert ended.exit_code == expected, ended
            assert not ended.timed_out
    assert "resumed from step" in train(fork_server, "run", 4, *options, "--max-steps", "1", code=STOPPED)


def comings_and_goings(num_units: int, most: int) -> str:
    """A record as an elastic run writes it: workers join, are lost and replaced; each holds up to `most` units at a time."""
    draw, ledger, lines, num_joined = random.Random(5), Ledger(num_units, 1), list[str](), 0
    idle: list[int] = []
    while not ledger.is_over:
        holders = sorted(ledger.leases)
        if num_joined < 4 or (len(lines) % 9 == 8 and num_joined < 9):
            idle.append(num_joined)
            lines.append(str(num_joined))
            num_joined += 1
        elif len(lines) % 11 == 10:
            lost = draw.choice(holders)
            ledger.lose(lost)
            lines.append(f"lost {lost}")
        else:
            calls = draw.choice(holders)
            ledger.done(calls)
            idle.append(calls)
            lines.append(str(calls))
        idle = [worker for worker in sorted(idle) if ledger.deal(worker, most) is None]
    return "".join(f"{line}\n" for line in lines)


def test_workers_that_came_and_went_are_repeated(fork_server: ForkServer) -> None:
    """From the record alone; the same where the repetition is stopped and resumed."""
    options = (*EASGD, "--set", "model.norm=true", "--elastic", "4", "--epochs", "1")
    Path("record.txt").write_text(comings_and_goings(60, 3))
    assert Path("record.txt").read_text().count("lost") >= 2
    told = train(fork_server, "run", 1, *options, "--replay", "record.txt")
    assert found("run")["reason"] == "finished" and found("run")["steps"] == 60 and "ends here" not in told
    assert Path("run/arrivals.txt").read_text() == Path("record.txt").read_text()
    train(fork_server, "again", 1, *options, "--replay", "run", "--checkpoint-every", "4")
    train(fork_server, "parts", 1, *options, "--replay", "run", "--checkpoint-every", "4", "--max-steps", "30", code=STOPPED)
    assert "resumed from step" in train(fork_server, "parts", 1, *options, "--replay", "run", "--checkpoint-every", "4")
    assert found("run")["weights"] == found("again")["weights"] == found("parts")["weights"]


def test_a_record_of_other_workers_is_refused_or_ends(fork_server: ForkServer) -> None:
    Path("record.txt").write_text(comings_and_goings(60, 1))
    options = (*GEM, "--epochs", "1")
    told = train(fork_server, "run", 1, *options, "--elastic", "2", "--replay", "record.txt", code=1)
    assert "does not lead to the end of the run" in told
    train(fork_server, "run", 1, *options, "--elastic", "4", "--replay", "record.txt", "--fresh")
    told = train(fork_server, "again", 1, *options, "--elastic", "2", "--replay", "run", code=2)
    assert "was another experiment: algorithm.elastic 4 before, 2 now" in told
    assert "joined and left the run to repeat (--replay); give the same --elastic" in train(
        fork_server, "again", 5, *options, "--replay", "record.txt", code=2
    )


def test_a_loss_that_is_no_number(fork_server: ForkServer) -> None:
    told = train(fork_server, "run", 3, *DOWNPOUR, "--checkpoint-every", "1", code=1, plan="nan 4")
    assert "the loss or gradient of worker" in told and "samples" in told and told.count("is not finite") == 1
    told = train(fork_server, "other", 3, *DOWNPOUR, "--on-nan", "skip", plan="nan 4")
    assert "the update is left out (--on-nan skip)" in told
    summary = json.loads(Path("other/summary.json").read_text())
    assert summary["num_skipped_updates"] == 1 and summary["reason"] == "finished"
    train(fork_server, "again", 3, *DOWNPOUR, "--on-nan", "skip", "--replay", "other", plan="nan 4")


def test_a_worker_that_fails_ends_all(fork_server: ForkServer) -> None:
    assert "this worker fails" in train(fork_server, "run", 3, *GEM, code=1, plan="raise 9")


def test_a_killed_worker_ends_the_job_and_the_same_command_resumes(fork_server: ForkServer) -> None:
    """Twice, the second time before anything was saved."""
    often = (*GEM, "--checkpoint-every", "5")
    Path("plan").write_text("die 20")
    with fork_server.start([*TRAIN, "--out", "run", *often], 3, "shm") as group:
        assert group.wait(60).exit_code
    Path("plan").write_text("die 1")
    with fork_server.start([*TRAIN, "--out", "run", *often], 3, "shm") as group:
        assert group.wait(60).exit_code
    told = train(fork_server, "run", 3, *often)
    assert "resumed from step" in told
    train(fork_server, "again", 1, *GEM, "--simulate", "2", "--replay", "run")
    assert found("again") == found("run")


@pytest.mark.parametrize(
    ("every", "plan"),
    [
        pytest.param(10, "die-saved 30", id="it runs when the save is requested, killed after the write"),
        pytest.param(10, "die-unsaved 30", id="it runs when the save is requested, killed before the write"),
        pytest.param(29, "die-saved 30", id="it begins after the request, killed after the write"),
    ],
)
def test_no_state_is_written_while_an_evaluation_runs(fork_server: ForkServer, every: int, plan: str) -> None:
    """It would hold sums of the new epoch under the number of the old one. An epoch has 30 batches; a save is requested after 30
    or 29 of them, and each of the two workers does one more before it sends its state."""
    often = (*GEM, "--checkpoint-every", str(every))
    Path("plan").write_text(plan)
    with fork_server.start([*TRAIN, "--out", "run", *often], 3, "shm") as group:
        assert group.wait(60).exit_code
    assert not Path("plan").exists()
    (step,) = re.findall(r"resumed from step (\d+)", train(fork_server, "run", 3, *often))
    assert (int(step) >= 30) == plan.startswith("die-saved")
    train(fork_server, "again", 1, *GEM, "--simulate", "2", "--replay", "run")
    assert found("again") == found("run")


def test_an_epoch_ends_between_the_request_to_stop_and_the_write(fork_server: ForkServer) -> None:
    """Requested after 29 of its 30 batches; of the two that follow, one is of the next epoch."""
    train(fork_server, "run", 3, *GEM, "--max-steps", "29", code=STOPPED)
    assert found("run")["steps"] == 31
    train(fork_server, "run", 3, *GEM)
    train(fork_server, "again", 1, *GEM, "--simulate", "2", "--replay", "run")
    assert found("again") == found("run")
