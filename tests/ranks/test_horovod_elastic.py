"""Elastic jobs on real processes: workers are killed, replaced, added and taken away, and the rest go on from the last commit."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.system.fork_server import ForkServer
from tests.system.processes import Outcome, Program, is_running, plain_environment, within

PROGRAMS = Path(__file__).parent / "programs"
LIMIT_S = 110.0


class Job:
    """A driver and what its workers have told; use it in a `with` statement."""

    def __init__(self, fork_server: ForkServer, folder: Path, plan: Mapping[str, Any] | Sequence[str], **asked: Any) -> None:
        """`plan` as words: those of `unisono horovodrun`."""
        self._story = folder / "story"
        self._story.touch()
        command = fork_server.stand_in([str(PROGRAMS / "elastic_train.py"), str(self._story), json.dumps(asked)])
        self.driver = start(plan, command) if isinstance(plan, Mapping) else start_command(plan, command)

    def events(self, *keys: str) -> list[dict[str, Any]]:
        """What happened so far that says something of all `keys`."""
        lines = self._story.read_text().split("\n")[:-1]
        return [event for event in map(json.loads, lines) if all(key in event for key in keys)]

    def wait_for(self, *keys: str, **values: Any) -> None:
        """Blocking: until a worker has reported this."""
        found = within(
            LIMIT_S, lambda: any(values.items() <= event.items() for event in self.events(*keys)) or self.driver.is_over()
        )
        assert found and any(values.items() <= event.items() for event in self.events(*keys)), self.driver.finish(0.0)

    def finish(self) -> Outcome:
        ended = self.driver.finish(LIMIT_S)
        assert ended.code == 0, f"{ended}\n{self._story.read_text()}"
        self.check_samples()
        return ended

    def check_samples(self) -> None:
        """No sample is lost, and only those that fill up the last step of a generation are used twice."""
        done = self.events("done")
        assert done and len({(event["used"], event["epochs"]) for event in done}) == 1, self._story.read_text()
        used, filled, last = done[0]["used"], 0, 0
        for event in self.events("epochs", "used"):
            if "done" not in event:
                filled += event["used"] - last - 120
                assert event["used"] - last >= 120, self._story.read_text()
                last = event["used"]
        assert used == 120 * done[0]["epochs"] + filled
        assert filled <= 4 * 2 * len(self.events("begins"))

    def __enter__(self) -> Job:
        self.driver.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.driver.__exit__(*error)


def start(plan: Mapping[str, Any], command: Sequence[str]) -> Program:
    return Program(drive(plan, command), environment())


def start_command(words: Sequence[str], command: Sequence[str], **more: str) -> Program:
    return Program([sys.executable, "-m", "unisono", "horovodrun", *words, *command], {**environment(), **more})


def drive(plan: Mapping[str, Any], command: Sequence[str]) -> list[str]:
    given = {"hosts": [["localhost", plan.get("num_proc", 1)]], "elastic_timeout_s": LIMIT_S, **plan}
    return [sys.executable, str(PROGRAMS / "elastic_drive.py"), json.dumps(given), *command]


def environment() -> dict[str, str]:
    return {**plain_environment(), "PYTHONPATH": os.pathsep.join(sys.path)}


def test_the_command_as_users_write_it(fork_server: ForkServer, tmp_path: Path) -> None:
    """A killed worker is dropped, the rest go on from the last commit, a new host joins; nobody deadlocks."""
    hosts, script, enough = (tmp_path / name for name in ("hosts", "discover", "enough"))
    hosts.write_text("localhost:4\n")
    script.write_text(f"#!/bin/sh\ncat {hosts}\n")
    script.chmod(0o755)
    words = ("--min-np", "2", "-np", "4", "--max-np", "4", "--host-discovery-script", str(script))
    with Job(fork_server, tmp_path, words, until=str(enough)) as job:
        job.wait_for("epochs", epochs=1)  # committed by all four
        # The slot of the one that is killed is taken over by the new host.
        victim = next(event["pid"] for event in job.events("starts") if event["worker"] == 3)
        (tmp_path / "new").write_text("localhost:3\n127.0.0.1:1\n")
        os.kill(victim, signal.SIGKILL)
        (tmp_path / "new").rename(hosts)
        job.wait_for("begins", host="127.0.0.1")
        enough.touch()
        ended = job.finish()
        # Which of the two is seen first is a matter of milliseconds.
        is_missed = "worker 3 (localhost:3) exited with code 137; 3 workers continue from the last commit" in ended.output
        assert is_missed or "the slots of the hosts have changed: localhost 4 -> 3, 127.0.0.1 0 -> 1" in ended.output, ended
        assert {event["size"] for event in job.events("begins") if event["begins"] == 1} == {4}
        assert all(event["used"] >= 120 for event in job.events("begins") if event["begins"] > 1), "nobody begins anew"
        done = {event["worker"]: event["host"] for event in job.events("done")}
        assert {0, 1, 2} < set(done) and "127.0.0.1" in done.values(), ended


def test_a_stuck_worker_is_killed_and_the_others_continue(fork_server: ForkServer, tmp_path: Path) -> None:
    plan = {"num_proc": 3, "min_num_proc": 2, "stalled_s": 4.0}
    with Job(fork_server, tmp_path, plan, sizes=[3, 2, 3], late={"3": 2}, deaths={"1:0:5": "stick"}, stall_s=2) as job:
        ended = job.finish()
        assert (
            "worker 1 (localhost:1) is stuck and is killed: it did not come back within 4 s after the stall check" in ended.output
        )
        assert sorted(event["worker"] for event in job.events("done")) == [0, 2, 3]


def test_a_killed_worker_is_dropped_and_replaced(fork_server: ForkServer, tmp_path: Path) -> None:
    plan = {"num_proc": 4, "min_num_proc": 2}
    with Job(fork_server, tmp_path, plan, sizes=[4, 3, 4], late={"4": 3}, deaths={"2:0:5": "kill"}) as job:
        ended = job.finish()
        assert "worker 2 (localhost:2) exited with code 137; 3 workers continue from the last commit" in ended.output
        again = [event for event in job.events("begins") if event["begins"] == 2]
        assert [event["used"] for event in again] == [40.0] * 3  # five steps of four workers with two samples each
        assert sorted(event["worker"] for event in job.events("done")) == [0, 1, 3, 4]
        assert all(event["rank"] == 0 for event in job.events("begins") if event["worker"] == 0)
        newest = next(event for event in job.events("begins") if event["worker"] == 4)
        assert newest["local"] == [2, 4] and newest["used"] > 40  # the slot of the dead one, and the state of the living
        assert len(job.events("reset")) >= 6


def test_another_worker_is_killed_while_callbacks_talk_after_a_loss(fork_server: ForkServer, tmp_path: Path) -> None:
    plan = {"num_proc": 3, "min_num_proc": 1}
    with Job(fork_server, tmp_path, plan, sizes=[3, 1], late={"3": 9, "4": 9}, deaths={"2:0:5": "kill", "1:reset": "kill"}) as job:
        ended = job.finish()
        assert "worker 1 (localhost:1) exited with code 137; 1 worker continues from the last commit" in ended.output
        assert 0 in {event["worker"] for event in job.events("done")}


def test_ranks_that_disagree_each_time_end_the_job_with_the_reason(fork_server: ForkServer, tmp_path: Path) -> None:
    deaths = {"0:0:3": "disagree", "1:0:3": "disagree"}
    with Job(fork_server, tmp_path, {"num_proc": 2, "min_num_proc": 1}, sizes=[2], deaths=deaths) as job:
        ended = job.driver.finish(LIMIT_S)
        assert ended.code == 1, ended
        assert "10 generations failed without a commit although no worker died" in ended.output
        assert ended.output.count("generation 0 ended: ") == 1 and len(job.events("starts")) == 2


@pytest.mark.parametrize(
    ("words", "variables", "message"),
    [
        ((), {"HOROVOD_CYCLE_TIME": "abc"}, "HOROVOD_CYCLE_TIME"),
        (("--timeline-filename", "/no/such/folder/t.json"), {}, "/no/such/folder/t.json"),
    ],
)
def test_a_mistake_found_by_init_is_reported_and_ends_the_job(
    fork_server: ForkServer, tmp_path: Path, words: Sequence[str], variables: Mapping[str, str], message: str
) -> None:
    story = tmp_path / "story"
    command = fork_server.stand_in([str(PROGRAMS / "elastic_train.py"), str(story), "{}"])
    with start_command(("-np", "2", "--min-np", "1", *words), command, **variables) as driver:
        ended = driver.finish(LIMIT_S)
    assert ended.code == 2 and message in ended.output, ended
    assert "exited with code 2, which means a usage error" in ended.output, ended
    assert story.read_text().count("starts") <= 2 and "Traceback" not in ended.output, ended


def test_a_discovery_script_that_fails_at_once_ends_the_job_at_once(tmp_path: Path) -> None:
    script = tmp_path / "discover"
    script.write_text("#!/bin/sh\necho no such partition >&2\nexit 3\n")
    script.chmod(0o755)
    with start_command(("-np", "1", "--min-np", "1", "--host-discovery-script", str(script)), ["true"]) as driver:
        ended = driver.finish(LIMIT_S)
    assert ended.code == 2 and "it exited with code 3: no such partition; run the script by hand" in ended.output, ended


def test_rank_0_and_another_are_killed_at_once(fork_server: ForkServer, tmp_path: Path) -> None:
    plan = {"num_proc": 4, "min_num_proc": 2, "hosts": [["localhost", 2], ["127.0.0.1", 2]]}
    deaths = {"0:0:4": "kill", "3:0:4": "kill"}
    with Job(fork_server, tmp_path, plan, sizes=[4, 2, 4], late={"4": 2, "5": 2}, deaths=deaths) as job:
        job.finish()
        assert {1, 2} < {event["worker"] for event in job.events("done")}
        assert len(job.events("done")) == 4


@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_is_killed_while_the_others_wait_for_it_in_init(fork_server: ForkServer, tmp_path: Path, victim: int) -> None:
    with Job(fork_server, tmp_path, {"num_proc": 3, "min_num_proc": 2}, sizes=[3], deaths={f"{victim}:init": "kill"}) as job:
        job.finish()
        assert sorted(event["worker"] for event in job.events("done")) == sorted({0, 1, 2, 3} - {victim})


def test_hosts_come_and_go(fork_server: ForkServer, tmp_path: Path) -> None:
    hosts, script = tmp_path / "hosts", tmp_path / "discover"
    hosts.write_text("localhost:2\n")
    script.write_text(f"#!/bin/sh\ncat {hosts}\n")
    script.chmod(0o755)
    plan = {"num_proc": 2, "min_num_proc": 1, "discovery_script": str(script)}
    with Job(fork_server, tmp_path, plan, sizes=[2, 3, 1]) as job:
        job.wait_for("begins", size=2)
        (tmp_path / "new").write_text("localhost:2\n127.0.0.1:1\n")
        (tmp_path / "new").rename(hosts)
        job.wait_for("begins", size=3, worker=2)
        (tmp_path / "new").write_text("127.0.0.1:1\n")
        (tmp_path / "new").rename(hosts)
        ended = job.finish()
        assert [event["worker"] for event in job.events("done")] == [2]
        assert "killed" not in ended.output and "exited" not in ended.output


def test_all_hosts_are_replaced(fork_server: ForkServer, tmp_path: Path) -> None:
    """The worker that goes has the state, which no other has yet; and for a while there is no host at all."""
    hosts, script, asked, enough = (tmp_path / name for name in ("hosts", "discover", "asked", "enough"))
    hosts.write_text("localhost:1\n")
    script.write_text(f"#!/bin/sh\ncat {hosts}; test -s {hosts} || echo >> {asked}\n")
    script.chmod(0o755)
    plan = {"num_proc": 1, "min_num_proc": 1, "discovery_script": str(script)}
    with Job(fork_server, tmp_path, plan, sizes=[1, 2, 1], until=str(enough)) as job:
        job.wait_for("epochs", epochs=1)
        hosts.write_text("")
        assert within(LIMIT_S, lambda: asked.exists() and asked.stat().st_size > 2)
        hosts.write_text("127.0.0.1:1\n")
        enough.touch()
        job.finish()
        assert [event["worker"] for event in job.events("done")] == [1]
        newest = next(event for event in job.events("begins") if event["worker"] == 1)
        assert newest["used"] >= 120


def test_too_few_workers_end_with_a_message(fork_server: ForkServer, tmp_path: Path) -> None:
    hosts, script = tmp_path / "hosts", tmp_path / "discover"
    hosts.write_text("localhost:2\n")
    script.write_text(f"#!/bin/sh\ncat {hosts}\n")
    script.chmod(0o755)
    plan = {"num_proc": 2, "min_num_proc": 2, "discovery_script": str(script), "elastic_timeout_s": 2.0}
    with Job(fork_server, tmp_path, plan, sizes=[9]) as job:
        job.wait_for("begins", size=2)
        hosts.write_text("localhost:1\n")
        ended = job.driver.finish(LIMIT_S)
        assert ended.code == 1, ended
        assert "only 1 worker for 2 s, fewer than --min-np 2; give more hosts, or more time" in ended.output


def test_a_program_that_fails_is_not_started_for_ever(fork_server: ForkServer, tmp_path: Path) -> None:
    deaths = {f"{worker}:start": "raise" for worker in range(20)}
    with Job(fork_server, tmp_path, {"num_proc": 2, "min_num_proc": 1}, deaths=deaths) as job:
        ended = job.driver.finish(LIMIT_S)
        assert ended.code == 1, ended
        assert "host localhost gets no more workers" in ended.output
        assert len(job.events("starts")) <= 5


def test_no_worker_left_with_the_state(fork_server: ForkServer, tmp_path: Path) -> None:
    deaths = {"0:0:3": "kill", "1:0:3": "kill"}
    with Job(fork_server, tmp_path, {"num_proc": 2, "min_num_proc": 1}, deaths=deaths) as job:
        ended = job.driver.finish(LIMIT_S)
        assert ended.code == 1, ended
        assert "no worker that holds the state of the job is left" in ended.output


def test_the_only_other_worker_with_the_state_reports_it_late(fork_server: ForkServer, tmp_path: Path) -> None:
    """It has the state when worker 0 dies, but the driver hears of that first."""
    plan = {"num_proc": 2, "min_num_proc": 1}
    with Job(fork_server, tmp_path, plan, sizes=[2], deaths={"0:0:0": "kill"}, reports_late=1) as job:
        job.finish()
        assert sorted(event["worker"] for event in job.events("done")) == [1, 2]


def test_the_limit_of_resets(fork_server: ForkServer, tmp_path: Path) -> None:
    deaths = {"1:0:3": "kill", "2:0:6": "kill"}
    plan = {"num_proc": 3, "min_num_proc": 1, "reset_limit": 1}
    with Job(fork_server, tmp_path, plan, sizes=[9], deaths=deaths) as job:
        ended = job.driver.finish(LIMIT_S)
        assert ended.code == 1, ended
        assert "reset 1 times, the limit set by --reset-limit" in ended.output


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_the_driver_is_the_end_of_the_workers(fork_server: ForkServer, tmp_path: Path, signum: signal.Signals) -> None:
    with Job(fork_server, tmp_path, {"num_proc": 2, "min_num_proc": 1}, sizes=[9]) as job:
        job.wait_for("begins", size=2)
        workers = [event["pid"] for event in job.events("starts")]
        job.driver.send(signum)
        ended = job.driver.finish(LIMIT_S)
        assert ended.code == (-signum if signum == signal.SIGKILL else 128 + signum), ended
        assert within(10.0, lambda: not any(map(is_running, workers)))


def test_a_process_that_is_killed_by_a_signal(tmp_path: Path) -> None:
    """Without the fork server: the driver sees the signal itself, and what workers print has their number in front. The others
    end well, and only when the one that was killed is replaced."""
    program, replaced = tmp_path / "program.py", tmp_path / "replaced"
    os.mkfifo(replaced)
    program.write_text(
        "import os\nfrom pathlib import Path\nprint('here', flush=True)\nworker = os.environ['UNISONO_ELASTIC_WORKER']\n"
        "if worker == '1': os.kill(os.getpid(), 9)\n"
        f"Path({str(replaced)!r}).open('r' if worker == '0' else 'w').close()\n"
    )
    with start({"num_proc": 2, "min_num_proc": 1}, [str(program)]) as driver:
        ended = driver.finish(LIMIT_S)
    assert ended.code == 0, ended
    assert "worker 1 (localhost:1) was killed by signal 9 (SIGKILL)" in ended.output
    assert {"[0] here", "[1] here"} <= set(ended.output.splitlines())


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"num_proc": 2, "min_num_proc": 3}, "--min-np must lie in 1..2 (-np); received 3"),
        ({"num_proc": 2, "min_num_proc": 1, "max_num_proc": 1}, "--max-np must be at least 2 (-np); received 1"),
        ({"num_proc": 2, "min_num_proc": 2, "hosts": [["localhost", 1]]}, "the hosts have 1 slots (-H), fewer than --min-np 2"),
        ({"num_proc": 1, "min_num_proc": 1, "cooldown_range": [5, 1]}, "--blacklist-cooldown-range must be two numbers"),
    ],
)
def test_plans_that_cannot_work(plan: Mapping[str, Any], words: str) -> None:
    with start(plan, ["true"]) as driver:
        ended = driver.finish(LIMIT_S)
    assert ended.code == 2 and words in ended.output, ended


# ---- what workers print ----------------------------------------------------------------------------------------------


def test_output_that_cannot_be_written_ends_the_job_with_a_message(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import signal\nprint('lost', flush=True)\nwhile True: signal.sigtimedwait((), 1)\n")
    command = drive({"num_proc": 1, "min_num_proc": 1}, [str(program)])
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S)
    assert done.returncode == 1, done
    assert "standard output could not be written: No space left on device" in done.stderr
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(LIMIT_S) == 128 + signal.SIGPIPE


def test_logs_are_those_of_this_job(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("print('now')")
    log = tmp_path / "rank-0.log"
    log.write_text("before\n")
    plan = {"num_proc": 1, "min_num_proc": 1, "output_folder": str(tmp_path)}
    with start(plan, [str(program)]) as driver:
        assert driver.finish(LIMIT_S).code == 0
    assert log.read_text() == "now\n"
    log.unlink()
    log.mkdir()
    with start(plan, [str(program)]) as driver:
        ended = driver.finish(LIMIT_S)
    assert ended.code == 2 and f"the log {log} cannot be written (--output-filename): Is a directory" in ended.output, ended


# ---- other hosts -----------------------------------------------------------------------------------------------------

SSH = """#!{python}
# A connection to the process of the test, which plays the daemon on the other host.
import os, socket, sys, threading
line = socket.socket(socket.AF_UNIX)
line.connect({door!r})
line.sendall(sys.argv[-1].encode() + b"\\n")
def up():
    while data := os.read(0, 65536):
        line.sendall(data)
    line.shutdown(socket.SHUT_WR)
threading.Thread(target=up, daemon=True).start()
while data := line.recv(65536):
    os.write(1, data)
os._exit(255)
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_workers_on_other_hosts_end_with_the_driver_before_they_know_it(tmp_path: Path, how: signal.Signals) -> None:
    """They have not come to hvd.init(), so nothing but the end of ssh tells them. They run below the test, not below the driver."""
    program = tmp_path / "program.py"
    program.write_text("import os, signal\nprint('pid', os.getpid(), flush=True)\nwhile True: signal.sigtimedwait((), 1)\n")
    ssh = tmp_path / "ssh"
    with socket.socket(socket.AF_UNIX) as door:
        door.settimeout(LIMIT_S)
        door.bind(str(tmp_path / "door"))
        door.listen()
        ssh.write_text(SSH.format(python=sys.executable, door=str(tmp_path / "door")))
        ssh.chmod(0o755)
        words = ("-np", "1", "--min-np", "1", "-H", "127.0.0.2:1")
        path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        with start_command(words, [sys.executable, str(program)], PATH=path) as driver:
            line, _ = door.accept()
            with line, line.makefile("rb", buffering=0) as first:
                remote = subprocess.Popen(
                    ["sh", "-c", first.readline().decode()],
                    stdin=line.fileno(),
                    stdout=subprocess.PIPE,
                    start_new_session=True,
                    text=True,
                )
            with remote:
                assert remote.stdout is not None
                worker = int(remote.stdout.readline().split()[1])
                driver.send(how)
                assert within(30.0, lambda: not is_running(worker)), "an orphan"
            driver.finish(LIMIT_S)
