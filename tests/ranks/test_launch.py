"""`unisono run`, with real processes: what it starts, passes on, ends and leaves behind (nothing)."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import selectors
import signal
import subprocess
import sys
import termios
import threading
from pathlib import Path
from time import monotonic

import pytest

from tests.ranks.launching import LIMIT_S, PATIENT_S, SHORT_S, Launcher, Script, run
from tests.system.processes import is_running, plain_environment, run_together, within
from tests.system.slurm import SlurmCluster
from unisono.errors import UsageError
from unisono.launch.launch import LaunchConfig, launch
from unisono.launch.orphans import preexec_of_rank
from unisono.launch.rank_process import start_process
from unisono.launch.signals import SignalInbox

pytestmark = pytest.mark.timeout(60)

# ---- exit codes ------------------------------------------------------------------------------------------------------


def test_all_is_well(script: Script) -> None:
    done = run("-n", "3", script("print('hello')"))
    assert done.process.returncode == 0
    assert sorted(done.printed("out")) == ["[0] hello", "[1] hello", "[2] hello"]
    assert done.printed("err") == []


def test_the_first_failing_rank_gives_the_exit_code(script: Script) -> None:
    done = run("-n", "3", script("sys.exit(3) if rank == 1 else wait_for_ever()"))
    assert done.process.returncode == 3
    assert "unisono: rank 1 exited with code 3; ranks 0, 2 will be ended in 0.4 s" in done.printed("err")
    assert "unisono: sending SIGTERM to ranks 0, 2, still running" in done.printed("err")


def test_the_name_of_the_job_is_in_our_messages(script: Script) -> None:
    done = run("-n", "1", "--job", "study 7", script("sys.exit(3)"))
    assert done.printed("err") == ["unisono (study 7): rank 0 exited with code 3"]


def test_ranks_that_notice_by_themselves_print_the_last_message(script: Script, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "link")  # rank 0 sees the end of rank 1 by it, as it would through a communicator
    body = f"""
    if rank == 1:
        link = open({str(tmp_path / "link")!r}, "w")
        sys.exit(3)
    open({str(tmp_path / "link")!r}).read()
    print("I saw it", flush=True)
    sys.exit(1)
    """
    with Launcher("-n", "2", script(body), grace_s=PATIENT_S) as launcher:
        assert launcher.reading().finish() in (1, 3)  # by whose end is seen first
        assert "[0] I saw it" in launcher.printed("out")
        assert "sending" not in launcher.shown()


def test_a_killed_rank_ends_the_others_within_ten_seconds(script: Script) -> None:
    with Launcher("-n", "3", script("pid(); wait_for_ever()")) as launcher:
        pids = launcher.reading().pids(3)
        start = monotonic()
        os.kill(pids[2], signal.SIGKILL)
        assert launcher.finish() == 128 + signal.SIGKILL
        assert monotonic() - start < 10
        assert "rank 2 was killed by signal 9 (SIGKILL)" in launcher.shown()
        assert not any(map(is_running, pids))


def test_a_rank_that_ignores_sigterm_is_killed(script: Script) -> None:
    body = "signal.signal(signal.SIGTERM, signal.SIG_IGN); pid(); os.read(0, 1) if rank == 0 else wait_for_ever(); sys.exit(9)"
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as stdin, Launcher("-n", "2", script(body), grace_s=SHORT_S, stdin=stdin) as launcher:
        launcher.reading().pids(2)
        os.close(writer)  # rank 0 fails now, when rank 1 is ready
        assert launcher.finish() == 9
        assert "unisono: sending SIGKILL to rank 1, still running" in launcher.printed("err")


def test_continue_lets_the_others_finish(script: Script) -> None:
    body = """
    if rank == 1: sys.exit(3)
    signal.signal(signal.SIGUSR1, lambda *_: (print("done", flush=True), sys.exit(0)))
    pid()
    wait_for_ever()
    """
    with Launcher("-n", "3", "--on-failure", "continue", script(body), grace_s=SHORT_S) as launcher:
        launcher.reading().wait_for("[0] pid", "[2] pid", "rank 1 exited with code 3; the others continue")
        os.kill(launcher.process.pid, signal.SIGUSR1)
        assert launcher.finish() == 3
        assert {"[0] done", "[2] done"} <= set(launcher.printed("out"))


def test_restart_starts_all_ranks_again(script: Script, tmp_path: Path) -> None:
    body = "print(f'life {restart}', os.environ['UNISONO_TOKEN']); sys.exit(7 if restart < 2 and rank == 1 else 0)"
    logs = tmp_path / "logs"
    options = ("--on-failure", "restart", "--restarts", "5", "--log-dir", str(logs))
    done = run("-n", "2", *options, script(body), grace_s=PATIENT_S)
    assert done.process.returncode == 0
    lives = [line.split() for line in done.printed("out")]
    assert sorted((line[0], line[2]) for line in lives) == [(f"[{r}]", str(k)) for r in (0, 1) for k in (0, 1, 2)]
    assert len({line[3] for line in lives}) == 3, "each attempt has its own token"
    assert "unisono: restarting all ranks (restart 2 of 5)" in done.printed("err")
    assert [line.split()[1] for line in (logs / "rank-0.log").read_text().splitlines()] == ["0", "1", "2"]


def test_restarts_are_limited(script: Script) -> None:
    body = "print('life', restart); sys.exit(7)"
    done = run("-n", "2", "--on-failure", "restart", "--restarts", "1", script(body), grace_s=PATIENT_S)
    assert done.process.returncode == 7
    assert sorted(done.printed("out")) == ["[0] life 0", "[0] life 1", "[1] life 0", "[1] life 1"]


# ---- environment and program -----------------------------------------------------------------------------------------

SHOW = "names = sys.argv[1:]; print(json.dumps({name: os.environ.get(name) for name in names}))"


def environments(done: Launcher) -> dict[int, dict[str, str | None]]:
    assert done.process.returncode == 0, done.shown()
    found = (re.fullmatch(r"\[(\d+)\] (.*)", line) for line in done.printed("out"))
    return {int(match[1]): json.loads(match[2]) for match in found if match}


def test_every_rank_knows_its_place(script: Script) -> None:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE", "NODE_RANK", "NUM_NODES", "JOB", "RESTART", "ENGINE")
    wanted = [f"UNISONO_{name}" for name in (*names, "ALLREDUCE", "TIME_LIMIT_S", "RENDEZVOUS", "TOKEN")]
    outer = {"UNISONO_RANK": "5", "UNISONO_WORLD_SIZE": "9", "UNISONO_TOKEN": "that of an outer job", "UNISONO_ALLREDUCE": "ring"}
    options = ("--engine", "gloo", "--time-limit-s", "12.5", "--job", "study")
    found = environments(run("-n", "2", *options, script(SHOW), *wanted, "PYTHONUNBUFFERED", env=outer))
    assert sorted(found) == [0, 1]
    tokens = {env.pop("UNISONO_TOKEN") for env in found.values()}
    meeting = {env.pop("UNISONO_RENDEZVOUS") for env in found.values()}
    assert len(tokens) == 1 and "that of an outer job" not in tokens
    assert len(meeting) == 1 and re.fullmatch(r"127\.0\.0\.1:\d+", str(meeting.pop()))
    for rank, env in found.items():
        values = (str(rank), "2", str(rank), "2", "0", "1", "study", "0", "gloo", "ring", "12.5", "1")
        assert tuple(env.values()) == values


def test_two_jobs_get_different_tokens(script: Script) -> None:
    both = [environments(run("-n", "1", script(SHOW), "UNISONO_TOKEN"))[0]["UNISONO_TOKEN"] for _ in range(2)]
    assert both[0] != both[1]


def test_nodes_agree_without_talking(script: Script) -> None:
    parts = ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "NUM_NODES", "LAUNCH", "TOKEN", "RENDEZVOUS")
    names = [f"UNISONO_{name}" for name in parts]
    found = {}
    for node, outer in (("0", {}), ("1", {}), ("0", {"UNISONO_TOKEN": "given for both nodes"})):
        options = ("--nodes", "2", "--node-rank", node, "--rendezvous", "node01:29400")
        shown = environments(run("-n", "2", *options, script(SHOW), *names, env=outer))
        # Without a secret of the user, the ranks derive one: what the launchers can agree on without talking is public.
        assert {env.pop("UNISONO_TOKEN") for env in shown.values()} == {outer.get("UNISONO_TOKEN")}
        found.update(shown)
    places = [tuple(found[rank].values())[:5] for rank in range(4)]
    assert places == [(str(r), str(r % 2), str(r // 2), "4", "2") for r in range(4)]
    assert len({env["UNISONO_LAUNCH"] for env in found.values()}) == 1
    assert {env["UNISONO_RENDEZVOUS"] for env in found.values()} == {"node01:29400"}


def test_threads_come_from_the_affinity_mask(script: Script) -> None:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    each = str(max(1, len(os.sched_getaffinity(0)) // 2))
    env = {"MKL_NUM_THREADS": "17", "OMP_NUM_THREADS": "", "OPENBLAS_NUM_THREADS": "", "NUMEXPR_NUM_THREADS": ""}
    assert tuple(environments(run("-n", "2", script(SHOW), *names, env=env))[1].values()) == (each, "17", each, each)
    asked = environments(run("-n", "2", "--threads", "3", script(SHOW), *names, env=env))
    assert tuple(asked[1].values()) == ("3", "3", "3", "3")


def test_each_rank_keeps_its_share_of_the_cpus_by_default(script: Script) -> None:
    available = sorted(os.sched_getaffinity(0))
    if len(available) < 2:
        pytest.skip("needs two CPUs to tell bound from unbound; run on a machine that has them")
    path = script("print('cpus', sorted(os.sched_getaffinity(0)))")
    each = len(available) // 2
    shares = [f"[{r}] cpus {available[r * each : (r + 1) * each]}" for r in range(2)]
    assert sorted(run("-n", "2", path).printed("out")) == shares
    for options in (["--bind", "none"], ["--threads", str(each + 1)]):
        everywhere = [f"[{r}] cpus {available}" for r in range(2)]
        assert sorted(run("-n", "2", *options, path).printed("out")) == everywhere, options


def test_modules_and_executables_run_too(tmp_path: Path) -> None:
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "__main__.py").write_text("import sys; print(sys.executable, sys.argv[1:])")
    done = run("-n", "1", "-m", "task", "-n", "--help", "--", "x", cwd=tmp_path)
    assert done.printed("out") == [f"[0] {sys.executable} ['-n', '--help', '--', 'x']"]
    assert run("-n", "1", "--", "echo", "-n", "x", "--log-dir").printed("out") == ["[0] x --log-dir"]
    script = tmp_path / "script"
    script.write_text("#!/usr/bin/env python3\nimport sys; print(sys.executable)")
    assert run("-n", "1", "./script", cwd=tmp_path).printed("out") == [f"[0] {sys.executable}"]


def test_standard_input_goes_to_rank_0(script: Script, tmp_path: Path) -> None:
    (tmp_path / "input").write_text("only once")
    with (
        (tmp_path / "input").open("rb") as stdin,
        Launcher("-n", "2", script("print(repr(sys.stdin.read()))"), stdin=stdin) as launcher,
    ):
        assert launcher.reading().finish() == 0
        assert sorted(launcher.printed("out")) == ["[0] 'only once'", "[1] ''"]


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("./text", "'./text' is not executable; allow it (chmod +x ./text)"),
        ("text", "'text' is not on PATH; to run the file in this folder write ./text"),
        ("folder", "'folder' is a folder"),
        ("no/such", "'no/such' does not exist"),
        ("nowhere.py", "'nowhere.py' does not exist"),
        ("no-such-program", "'no-such-program' was not found on PATH"),
        ("./broken", "rank 0 cannot be started (./broken): Exec format error"),
    ],
)
def test_a_program_that_cannot_run_is_refused(tmp_path: Path, program: str, message: str) -> None:
    (tmp_path / "text").write_text("not a program")
    (tmp_path / "broken").write_bytes(b"\x7fELF nonsense")
    (tmp_path / "broken").chmod(0o755)
    (tmp_path / "folder").mkdir()
    done = run("-n", "2", program, cwd=tmp_path)
    assert done.process.returncode == 2
    assert len(done.lines) == 1
    assert done.printed("err")[0].startswith("unisono: error: ") and message in done.lines[0]


def test_inside_several_processes_of_another_launcher_it_is_refused(script: Script) -> None:
    env = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    done = run("-n", "2", script("print('started')"), env=env)
    assert done.process.returncode == 2
    assert "this is process 1 of 4 according to torchrun" in done.shown()
    assert "would start 4 x 2 processes" in done.shown()
    alone = run("-n", "2", script("print('started')"), env={**env, "RANK": "0", "WORLD_SIZE": "1"})
    assert alone.process.returncode == 0
    nodes = ("--nodes", "2", "--node-rank", "1", "--rendezvous", "node01:29400")
    assert run("-n", "2", *nodes, script("print('started')"), env=env).process.returncode == 0


@pytest.mark.slurm
def test_under_srun_one_task_may_start_ranks_and_several_may_not(slurm_cluster: SlurmCluster, script: Script) -> None:
    program = [sys.executable, "-m", "unisono", "run", "-n", "2", script("print('started')")]
    one, several = (
        run_together([["srun", "-N1", f"-n{tasks}", *program]], slurm_cluster.environment, LIMIT_S)[0] for tasks in (1, 2)
    )
    assert one.code == 0 and sorted(one.output.splitlines()) == ["[0] started", "[1] started"], str(one)
    assert several.code == 2 and "] started" not in several.output, str(several)
    assert "of 2 according to slurm" in several.output


# ---- lines -----------------------------------------------------------------------------------------------------------


def test_outputs_stay_apart_and_last_lines_are_not_lost(script: Script) -> None:
    body = "sys.stdout.write('out'); sys.stdout.flush(); sys.stderr.write('err\\n\\nlast'); sys.exit(4 if rank else 0)"
    done = run("-n", "1", script(body))
    assert done.printed("out") == ["[0] out"]
    assert done.printed("err") == ["[0] err", "[0] ", "[0] last"]


def test_the_last_output_of_a_rank_comes_before_the_verdict(script: Script) -> None:
    body = """
    def fail(*_):
        sys.stderr.write("x" * 50000 + "the cause")
        os._exit(4)
    signal.signal(signal.SIGUSR1, fail)
    pid(); wait_for_ever()
    """
    with Launcher("-n", "1", script(body)) as launcher:
        (rank,) = launcher.reading().pids(1)
        os.kill(launcher.process.pid, signal.SIGSTOP)  # so that it finds the words and the exit at the same time
        os.kill(rank, signal.SIGUSR1)
        assert within(LIMIT_S, lambda: not is_running(rank))
        os.kill(launcher.process.pid, signal.SIGCONT)
        assert launcher.finish() == 4
        assert launcher.printed("err")[0].endswith("xthe cause")
        assert launcher.printed("err")[1] == "unisono: rank 0 exited with code 4"


def test_much_output_of_all_ranks_arrives_whole(script: Script) -> None:
    num_lines, width = 20000, 200
    body = f"""
    for part in range(20):
        lines = (f"{{rank}} {{part * {num_lines // 20} + i}} ".ljust({width}, "abcd"[rank]) for i in range({num_lines // 20}))
        text = "\\n".join(lines) + "\\n"
        (sys.stderr if part % 2 else sys.stdout).write(text)
    """
    done = run("-n", "4", script(body))
    assert done.process.returncode == 0
    for rank in range(4):
        for name, parity in (("out", 0), ("err", 1)):
            numbers = []
            for line in done.printed(name):
                if line.startswith(f"[{rank}] "):
                    text = line.removeprefix(f"[{rank}] ")
                    fields = text.split(" ")
                    assert text == f"{rank} {fields[1]} ".ljust(width, "abcd"[rank])
                    numbers.append(int(fields[1]))
            assert numbers == [n for n in range(num_lines) if n * 20 // num_lines % 2 == parity]


def test_both_outputs_into_one_pipe_are_not_mixed_within_a_line(script: Script) -> None:
    body = "for i in range(300):\n    print('o' * 9000)\n    print('e' * 7000, file=sys.stderr)"
    command = [sys.executable, "-m", "unisono", "run", "-n", "2", script(body)]
    done = subprocess.run(command, env=plain_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_S)
    assert done.returncode == 0
    wanted = [f"[{rank}] {text}" for rank in (0, 1) for text in ("e" * 7000, "o" * 9000) for _ in range(300)]
    assert sorted(done.stdout.decode().splitlines()) == wanted


def test_long_lines_and_junk(script: Script) -> None:
    done = run("-n", "2", script("sys.stdout.write(str(rank) * 200_000)"))
    assert sorted(done.printed("out")) == ["[0] " + "0" * 200_000, "[1] " + "1" * 200_000]
    endless = run("-n", "1", script("sys.stdout.write('x' * 5_000_000)"))
    assert sum(line.count("x") for line in endless.printed("out")) == 5_000_000
    junk = bytes(set(range(256)) - set(b"\r\n")) * 50
    command = [sys.executable, "-m", "unisono", "run", "-n", "1", script(f"os.write(1, {junk!r})")]
    done_junk = subprocess.run(command, env=plain_environment(), capture_output=True, timeout=LIMIT_S)
    assert done_junk.stdout == b"[0] " + junk + b"\n"


def test_a_rank_may_close_its_outputs(script: Script) -> None:
    body = "print('bye', flush=True); os.close(1); os.close(2); sys.exit(5 * rank)"
    done = run("-n", "2", script(body), grace_s=PATIENT_S)
    assert done.process.returncode == 5
    assert sorted(done.printed("out")) == ["[0] bye", "[1] bye"]


def test_log_files(script: Script, tmp_path: Path) -> None:
    logs = tmp_path / "new" / "logs"
    (tmp_path / "new").mkdir()
    logs.mkdir()
    (logs / "rank-0.log").write_text("of an older run")
    done = run("-n", "2", "--log-dir", str(logs), script("print('out', rank); print('err', rank, file=sys.stderr)"))
    assert done.process.returncode == 0
    assert {file.name: sorted(file.read_text().splitlines()) for file in logs.iterdir()} == {
        "rank-0.log": ["err 0", "out 0"],
        "rank-1.log": ["err 1", "out 1"],
    }
    assert sorted(done.printed("out")) == ["[0] out 0", "[1] out 1"]


def test_a_log_folder_that_cannot_be_written_is_refused(script: Script, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("-n", "2", "--log-dir", str(tmp_path / "file" / "logs"), script("print('started')"))
    assert done.process.returncode == 2
    assert "(--log-dir): Not a directory" in done.shown() and "started" not in done.shown()


def test_a_full_disk_under_the_log_does_not_end_the_run(script: Script, tmp_path: Path) -> None:
    (tmp_path / "rank-0.log").symlink_to("/dev/full")
    done = run("-n", "1", "--log-dir", str(tmp_path), script("print('one', flush=True); print('two', flush=True)"))
    assert done.process.returncode == 0
    assert done.printed("out") == ["[0] one", "[0] two"]
    assert "No space left on device; this log ends here" in done.shown()


def test_a_reader_that_leaves_ends_the_ranks_silently(script: Script) -> None:
    body = "while True: print('more')"
    with Launcher("-n", "3", script(body), grace_s=SHORT_S) as launcher:
        assert launcher.process.stdout is not None and launcher.process.stderr is not None
        assert launcher.process.stdout.readline().startswith(b"[")
        launcher.process.stdout.close()
        assert launcher.process.wait(LIMIT_S) == 128 + signal.SIGPIPE
        assert launcher.process.stderr.read() == b""


def test_a_reader_that_leaves_is_no_failure_to_start_again_from(script: Script) -> None:
    body = "print('life', restart, flush=True)\nwhile True: print('more')"
    with Launcher("-n", "1", "--on-failure", "restart", script(body), grace_s=SHORT_S) as launcher:
        assert launcher.process.stdout is not None and launcher.process.stderr is not None
        assert launcher.process.stdout.readline() == b"[0] life 0\n"
        launcher.process.stdout.close()
        assert launcher.process.wait(LIMIT_S) == 128 + signal.SIGPIPE
        assert launcher.process.stderr.read() == b""


def test_with_logs_the_ranks_continue_without_a_reader(script: Script, tmp_path: Path) -> None:
    body = "for i in range(20000): print(i)"
    with Launcher("-n", "1", "--log-dir", str(tmp_path / "logs"), script(body), grace_s=SHORT_S) as launcher:
        assert launcher.process.stdout is not None
        launcher.process.stdout.close()
        assert launcher.process.wait(LIMIT_S) == 0
    assert (tmp_path / "logs" / "rank-0.log").read_text().split() == [str(i) for i in range(20000)]


def test_ranks_that_waited_for_a_slow_reader_end_when_it_leaves(script: Script) -> None:
    body = "print('first', flush=True)\nwhile True: print('x' * 1000)"
    with Launcher("-n", "2", script(body), grace_s=SHORT_S, max_pending_bytes=100_000) as launcher:
        assert launcher.process.stdout is not None
        launcher.process.stdout.readline()
        launcher.process.stdout.close()
        assert launcher.process.wait(LIMIT_S) == 128 + signal.SIGPIPE


def test_a_full_output_says_so(script: Script) -> None:
    command = [sys.executable, "-m", "unisono", "run", "-n", "1", script("print('lost')")]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, env=plain_environment(), stdout=full, stderr=subprocess.PIPE, timeout=LIMIT_S)
    assert done.returncode == 1
    assert b"standard output could not be written: No space left on device" in done.stderr


def test_a_closed_output_breaks_nothing(script: Script) -> None:
    """What would be written there must not go into one of our own pipes (a line end read as a signal is SIGUSR1)."""
    body = """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    print(1)
    sys.exit(9 if signal.sigtimedwait({signal.SIGUSR1}, 1) else 5 * rank)
    """
    command = f"exec {sys.executable} -m unisono run -n 2 {script(body)} <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], env=plain_environment(), timeout=LIMIT_S).returncode == 5


# ---- signals ---------------------------------------------------------------------------------------------------------

COUNT = """
counts = {}
def note(signum, frame):
    name = signal.Signals(signum).name
    counts[name] = counts.get(name, 0) + 1
    print("got", name, flush=True)
    if name == "SIGUSR2":
        print("counts", json.dumps(counts), flush=True)
        os._exit(0)
for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"):
    signal.signal(getattr(signal, name), note)
pid(); wait_for_ever()
"""


def test_every_signal_reaches_every_rank_exactly_once(script: Script) -> None:
    with Launcher("-n", "2", script(COUNT)) as launcher:
        launcher.reading().pids(2)
        for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"):
            os.killpg(launcher.process.pid, getattr(signal, name))  # the whole group, as a terminal does
            launcher.wait_for(f"[0] got {name}", f"[1] got {name}")
        assert launcher.finish() == 0
        counts = [json.loads(line.partition("counts ")[2]) for line in launcher.printed("out") if "counts" in line]
        once = dict.fromkeys(("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"), 1)
        assert counts == [once, once]


def test_a_signal_between_fork_and_exec_does_not_come_back_to_us() -> None:
    """There a rank still has our handlers and our wake-up pipe; one Ctrl-C would count twice."""
    with selectors.DefaultSelector() as selector, SignalInbox(selector) as inbox:
        with inbox.blocked() as mask:
            prepare = preexec_of_rank(mask)

            def interrupted() -> None:
                os.kill(os.getpid(), signal.SIGINT)
                prepare()

            process, out, err = start_process(("true",), plain_environment(), None, interrupted)
        with out, err:
            assert process.wait(LIMIT_S) == 0
        assert inbox.received() == []
        os.kill(os.getpid(), signal.SIGINT)
        assert inbox.received() == [signal.SIGINT]


def test_the_second_interrupt_kills(script: Script) -> None:
    with Launcher("-n", "2", script(COUNT)) as launcher:
        pids = launcher.reading().pids(2)
        os.kill(launcher.process.pid, signal.SIGINT)
        launcher.wait_for("[0] got SIGINT", "[1] got SIGINT", "Ctrl-C again")
        assert all(map(is_running, pids))
        os.kill(launcher.process.pid, signal.SIGINT)
        assert launcher.finish() == 130
        assert not any(map(is_running, pids))


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_is_no_failure_to_start_again_from(script: Script, signum: int, code: int) -> None:
    body = "signal.signal(signal.SIGINT, signal.SIG_DFL); pid(); wait_for_ever()"
    with Launcher("-n", "2", "--on-failure", "restart", script(body)) as launcher:
        launcher.reading().pids(2)
        os.kill(launcher.process.pid, signum)
        assert launcher.finish() == code
        assert "(restart" not in launcher.shown()


def test_ranks_that_stop_in_good_order_give_0(script: Script) -> None:
    body = "signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(0))); pid(); wait_for_ever()"
    with Launcher("-n", "2", script(body)) as launcher:
        launcher.reading().pids(2)
        os.kill(launcher.process.pid, signal.SIGTERM)
        assert launcher.finish() == 0
        assert {"[0] saved", "[1] saved"} <= set(launcher.printed("out"))


def test_nohup_holds_for_the_ranks_too(script: Script) -> None:
    body = "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0)); pid(); wait_for_ever()"
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        launcher = Launcher("-n", "1", script(body))
    finally:
        signal.signal(signal.SIGHUP, before)
    with launcher:
        launcher.reading().pids(1)
        os.kill(launcher.process.pid, signal.SIGHUP)
        os.kill(launcher.process.pid, signal.SIGUSR1)
        assert launcher.finish() == 0


def test_signals_pass_while_the_output_is_not_read(script: Script, tmp_path: Path) -> None:
    body = f"""
    def stop(*_):
        open({str(tmp_path)!r} + f"/stopped-{{rank}}", "w").close()
        os._exit(0)
    signal.signal(signal.SIGTERM, stop)
    sys.stdout.write(("x" * 500_000 + chr(10)) * 4)  # long lines: each is more than the reader's pipe holds
    open({str(tmp_path)!r} + f"/printed-{{rank}}", "w").close()
    wait_for_ever()
    """

    def all_have(what: str) -> bool:
        return all((tmp_path / f"{what}-{rank}").exists() for rank in (0, 1))

    with Launcher("-n", "2", script(body)) as launcher:
        assert within(LIMIT_S, lambda: all_have("printed")), "a rank is blocked by our reader"
        os.kill(launcher.process.pid, signal.SIGTERM)
        assert within(LIMIT_S, lambda: all_have("stopped"))
        assert launcher.reading().finish() == 0
        assert sorted(launcher.printed("out")) == [f"[{rank}] {'x' * 500_000}" for rank in (0, 1) for _ in range(4)]


def test_ranks_wait_for_a_slow_reader_rather_than_fill_our_memory(script: Script) -> None:
    body = "for i in range(5000): print(str(i).rjust(1000))"
    with Launcher("-n", "2", script(body), grace_s=SHORT_S, max_pending_bytes=100_000) as launcher:
        assert launcher.reading().finish() == 0
        wanted = [f"[{rank}] {i:1000}" for rank in (0, 1) for i in range(5000)]
        assert sorted(launcher.printed("out")) == wanted


def test_on_a_terminal(script: Script) -> None:
    """Ranks are in colour, and Ctrl-C typed there reaches each of them once."""
    master, slave = pty.openpty()

    def own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    command = [sys.executable, "-m", "unisono", "run", "-n", "2", script(COUNT)]
    env = {**plain_environment(), "TERM": "xterm"}
    env.pop("NO_COLOR", None)
    process = subprocess.Popen(command, env=env, stdin=slave, stdout=slave, stderr=slave, preexec_fn=own_terminal)
    os.close(slave)
    shown = b""

    def read_until(*wanted: bytes) -> None:
        nonlocal shown
        while not all(text in shown for text in wanted):
            shown += os.read(master, 65536)

    try:
        read_until(b"\x1b[36m[0]\x1b[0m pid ", b"\x1b[33m[1]\x1b[0m pid ")
        os.write(master, b"\x03")
        read_until(b"[0]\x1b[0m got SIGINT", b"[1]\x1b[0m got SIGINT")
        os.kill(process.pid, signal.SIGUSR2)
        read_until(b'[0]\x1b[0m counts {"SIGINT": 1,', b'[1]\x1b[0m counts {"SIGINT": 1,')
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_a_shell_around_the_program_does_not_hide_it_from_ctrl_c(script: Script) -> None:
    body = "signal.signal(signal.SIGINT, lambda *_: (print('heard', flush=True), sys.exit(0))); pid(); wait_for_ever()"
    with Launcher("-n", "1", "sh", "-c", f"{sys.executable} {script(body)}; exit 0") as launcher:
        launcher.reading().pids(1)
        os.kill(launcher.process.pid, signal.SIGINT)
        launcher.finish()
        assert "[0] heard" in launcher.printed("out")


# ---- from Python -----------------------------------------------------------------------------------------------------


def test_launch_from_python_leaves_the_process_as_it_was(script: Script, capfd: pytest.CaptureFixture[str]) -> None:
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
    before = [signal.getsignal(signum) for signum in signals]
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    program = script("print('here'); sys.exit(rank)")
    assert launch(LaunchConfig(program=(program,), num_local=2)) == 1
    assert [signal.getsignal(signum) for signum in signals] == before
    assert signal.set_wakeup_fd(-1) == -1
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    assert sorted(capfd.readouterr().out.splitlines()) == ["[0] here", "[1] here"]


def test_launch_is_refused_outside_the_main_thread(script: Script) -> None:
    errors: list[BaseException] = []

    def body() -> None:
        try:
            launch(LaunchConfig(program=(script("pass"),), num_local=1))
        except UsageError as error:
            errors.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join(LIMIT_S)
    assert "main thread" in str(errors[0])
