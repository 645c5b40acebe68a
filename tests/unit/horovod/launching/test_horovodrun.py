"""`unisono horovodrun` before it starts anything: flags, file of settings, hosts, and the command lines of other launchers."""

from __future__ import annotations

import argparse
import re
import signal
import socket
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from unisono.cli import main
from unisono.errors import UsageError
from unisono.horovod._impl.elastic.worker_environment import ELASTIC, DriverAddress, worker_environment
from unisono.horovod._impl.job.init_messages import READ, without_effect
from unisono.horovod._impl.launching import host_slots as hosts
from unisono.horovod._impl.launching import rank_start
from unisono.horovod._impl.launching.command_line import (
    add_arguments,
    idle_of,
    remarks_of,
    split,
    values_of,
    variables_of,
    with_defaults,
)
from unisono.horovod._impl.launching.flags import FLAGS, rows
from unisono.horovod._impl.launching.import_alias import real_horovod, refuse_a_real_one
from unisono.horovod._impl.launching.other_launchers import LaunchRequest, MpiLaunchOptions, by_mpirun, by_srun
from unisono.horovod._impl.launching.over_ssh import OverSsh
from unisono.horovod._impl.launching.program_start import ProgramLaunch, job_name
from unisono.horovod._impl.launching.rank_start import first_folder, with_horovod
from unisono.horovod._impl.launching.rank_variables import HorovodStart
from unisono.horovod._impl.launching.settings_file import controller_of, parse_settings
from unisono.horovod._impl.launching.ssh_words import OPTIONS
from unisono.launch.control_messages import SIGNAL_RECEIVED, failure_report
from unisono.launch.launch import LaunchConfig
from unisono.launch.launch_options import launch_options
from unisono.launch.rank_env import Placement, rank_environment
from unisono.launch.ssh import hosts_run
from unisono.launch.ssh.hosts_run import HostCommand, first_cause, run_on_hosts


def values(*words: str, settings: str = "") -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    flags, _ = split([*words, "program"])
    return {**values_of(parser.parse_args(flags), parse_settings(settings, "file")), "control_stdin": False}


def variables(*words: str, settings: str = "") -> dict[str, str]:
    return dict(variables_of(values(*words, settings=settings)))


# ---- flags -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "flags", "program"),
    [
        ("-np 4 python train.py -np 9", "-np 4", "python train.py -np 9"),
        ("--num-proc=4 --verbose train.py", "--num-proc=4 --verbose", "train.py"),
        ("--blacklist-cooldown-range 1 2 train.py --x", "--blacklist-cooldown-range 1 2", "train.py --x"),
        ("-np 2 -- --strange", "-np 2", "--strange"),
        ("--mpi --mpi-args --oversubscribe train.py", "--mpi --mpi-args=--oversubscribe", "train.py"),
        ("-np 2", "-np 2", ""),
        ("-Hlocalhost:2 -p22 train.py -Hx", "-Hlocalhost:2 -p22", "train.py -Hx"),
    ],
)
def test_the_program_begins_at_the_first_argument_that_is_no_flag(words: str, flags: str, program: str) -> None:
    assert split(words.split()) == (flags.split(), tuple(program.split()))


def test_a_short_flag_may_be_joined_with_its_value() -> None:
    found = values("-Hlocalhost:2", "-p22", "-i", "key")
    assert (found["hosts"], found["ssh_port"], found["ssh_identity_file"]) == ("localhost:2", 22, "key")


def test_a_misspelt_flag_is_reported_with_the_right_one() -> None:
    with pytest.raises(UsageError, match=r"does not know '--timeline-file'; did you mean '--timeline-filename'"):
        split(["--timeline-file", "x", "train.py"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--fusion-threshold-mb 64", {"HOROVOD_FUSION_THRESHOLD": str(64 << 20)}),
        ("--fusion-threshold-mb 0.5", {"HOROVOD_FUSION_THRESHOLD": str(1 << 19)}),
        ("--cycle-time-ms 2.5 --cache-capacity 0", {"HOROVOD_CYCLE_TIME": "2.5", "HOROVOD_CACHE_CAPACITY": "0"}),
        ("--autotune --autotune-log-file a.csv", {}),
        ("--no-autotune", {}),
        ("--timeline-filename t.json --timeline-mark-cycles", {"HOROVOD_TIMELINE": "t.json", "HOROVOD_TIMELINE_MARK_CYCLES": "1"}),
        ("--no-stall-check", {"HOROVOD_STALL_CHECK_DISABLE": "1"}),
        ("--stall-check-shutdown-time-seconds 90", {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "90"}),
        ("--log-level debug --log-without-timestamp", {"HOROVOD_LOG_LEVEL": "DEBUG", "HOROVOD_LOG_HIDE_TIME": "1"}),
        ("--log-with-timestamp", {"HOROVOD_LOG_HIDE_TIME": "0"}),
        ("-np 4", {}),
    ],
)
def test_flags_become_variables(words: str, expected: dict[str, str]) -> None:
    assert variables(*words.split()) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-np two", "--num-proc must be a whole number, 0 or more; received 'two'"),
        ("--cycle-time-ms -1", "--cycle-time-ms must be a number, 0 or more"),
        ("--cycle-time-ms nan", "--cycle-time-ms must be a number"),
        ("--autotune-warmup-samples some", "--autotune-warmup-samples must be a whole number, 0 or more; received 'some'"),
        ("--log-level loud", "--log-level must be one of TRACE"),
        ("--blacklist-cooldown-range 9 3", "the smaller first; received 9 3"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(words: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        values(*words.split())


def test_every_flag_without_effect_says_why_when_used_and_only_then() -> None:
    idle = [flag for flag in FLAGS if flag.no_effect]
    assert len(idle) >= 7
    for flag in idle:
        words = [flag.names[0]] if flag.kind == "switch" else [flag.names[0], "3"]
        (remark,) = remarks_of(values(*words))
        assert flag.kind != "whole" or remarks_of(values(flag.names[0], "0")) == [remark]
        assert flag.no_effect is not None and flag.no_effect in remark
        if flag.off:
            assert not remarks_of(values(flag.off[0]))
        assert "no effect" in flag.does


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        ("--reset-limit 0", "--min-num-proc or --max-num-proc or --host-discovery-script"),
        ("--slots-per-host 2 --min-np 1", "--host-discovery-script"),
        ("--timeline-mark-cycles", "--timeline-filename"),
    ],
)
def test_a_flag_without_the_one_that_it_needs_says_so(words: str, needed: str) -> None:
    flag = words.split()[0]
    assert idle_of(values(*words.split()), {}) == [f"{flag} has no effect without {needed}"]


def test_a_flag_that_has_what_it_needs_says_nothing() -> None:
    assert not idle_of(values("--reset-limit", "3", "--min-np", "1"), {})
    assert not idle_of(values("--timeline-mark-cycles", "--timeline-filename", "x"), {})
    assert not idle_of(values("--timeline-mark-cycles"), {"HOROVOD_TIMELINE": "DYNAMIC"})
    assert idle_of(values("--timeline-mark-cycles"), {"HOROVOD_TIMELINE": "0"})


def test_variables_are_the_defaults_of_two_flags() -> None:
    env = {"HOROVOD_START_TIMEOUT": "9", "HOROVOD_ELASTIC_TIMEOUT": "8", "HOROVOD_EMPTY": ""}
    found = with_defaults(values("--start-timeout", "3"), env)
    assert (found["start_timeout"], found["elastic_timeout"]) == (3, 8)
    assert with_defaults(values(), {"HOROVOD_START_TIMEOUT": ""})["start_timeout"] is None
    with pytest.raises(UsageError, match=re.escape("HOROVOD_START_TIMEOUT (environment) must be a whole number, 0 or more")):
        with_defaults(values(), {"HOROVOD_START_TIMEOUT": "soon"})
    with pytest.raises(UsageError, match=re.escape("--elastic-timeout (HOROVOD_ELASTIC_TIMEOUT) must be at least 1; received 0")):
        order("--min-np", "1", env={"HOROVOD_ELASTIC_TIMEOUT": "0"}).start()
    assert without_effect(env) == "" and "HOROVOD_ELASTIC_NEW (unknown)" in without_effect({"HOROVOD_ELASTIC_NEW": "1"})


def test_flags_are_different_and_their_variables_are_read_or_known() -> None:
    names = [name for flag in FLAGS for name in (*flag.names, *flag.off)]
    assert len(names) == len(set(names)) == len({flag.dest for flag in FLAGS}) + sum(len(f.names) + len(f.off) - 1 for f in FLAGS)
    assert all(READ.fullmatch(flag.variable) for flag in FLAGS if flag.variable)
    assert len(rows()) == len(FLAGS)


# ---- the file of settings --------------------------------------------------------------------------------------------

FILE = """
# as in Horovod's own example
params:
    fusion_threshold_mb: 32
    cycle_time_ms: 5      # a remark
    cache-capacity: 2048
    hierarchical_allreduce: True
autotune:
    enabled: yes
    log_file: "horovod autotune.log"
    steps_per_sample: 5
timeline:
    filename: 'time#line.json'
    mark_cycles: false
stall_check:
    enabled: false
    warning_time_seconds: 120
library_options:
    num_nccl_streams: ~
logging:
    level: INFO
    with_timestamp: False
"""


def test_the_file_of_settings() -> None:
    assert variables(settings=FILE) == {
        "HOROVOD_FUSION_THRESHOLD": str(32 << 20),
        "HOROVOD_CYCLE_TIME": "5",
        "HOROVOD_CACHE_CAPACITY": "2048",
        "HOROVOD_TIMELINE": "time#line.json",
        "HOROVOD_TIMELINE_MARK_CYCLES": "0",
        "HOROVOD_STALL_CHECK_DISABLE": "1",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "120",
        "HOROVOD_LOG_LEVEL": "INFO",
        "HOROVOD_LOG_HIDE_TIME": "1",
    }
    first, second = remarks_of(values(settings=FILE))
    assert first.startswith("--hierarchical-allreduce has no effect: ")
    assert second.startswith("--autotune, --autotune-log-file, --autotune-steps-per-sample have no effect: there is no autotuning")


def test_quotes_in_the_file_of_settings() -> None:
    for text, expected in (
        ("'it''s # mine.json'", "it's # mine.json"),
        ('"it\'s.json" # mine', "it's.json"),
        ("it's.json", "it's.json"),
    ):
        assert parse_settings(f"timeline:\n  filename: {text}", "file") == {"timeline.filename": expected}


def test_values_of_the_file_stay_as_they_are_written() -> None:
    assert parse_settings("---\nparams: {cycle_time_ms: 010, cache_capacity: 'null'}\ntimeline:\n", "file") == {
        "params.cycle_time_ms": "010",
        "params.cache_capacity": "null",
    }
    assert parse_settings("", "file") == parse_settings("params:\n", "file") == {}


def test_without_pyyaml_the_file_of_settings_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(UsageError, match=r"--config-file needs PyYAML.*pip install 'unisono\[horovod\]'"):
        parse_settings("", "file")


def test_the_command_line_outweighs_the_file() -> None:
    words = ("--cycle-time-ms", "7", "--no-autotune", "--no-hierarchical-allreduce", "--stall-check")
    found = variables(*words, settings=FILE)
    assert found["HOROVOD_CYCLE_TIME"] == "7"
    (remark,) = remarks_of(values(*words, settings=FILE))
    assert remark.startswith("--autotune-log-file, --autotune-steps-per-sample have no effect: ")
    assert found["HOROVOD_STALL_CHECK_DISABLE"] == "0"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "params:\n  cycle_time: 3",
            "file, line 2 sets params.cycle_time, which horovodrun does not know (--config-file); the keys of params are",
        ),
        ("parameters:\n  x: 3", "file, line 2 sets parameters.x, which horovodrun does not know (--config-file); the sections are"),
        ("params:\n  - 3", "file, line 2 is not understood (--config-file): lines `key: value` were expected"),
        (
            "params:\n  cache_capacity: [1, 2]",
            "file, line 2 is not understood (--config-file): params.cache_capacity must be one value",
        ),
        ('timeline:\n  filename: "abc\n  mark_cycles: 1\n', "file, line 2 is not understood (--config-file): found unexpected end"),
        ("timeline:\n  filename: 'it's.json'\n", "file, line 2 is not understood"),
        ("params:\n\tcache_capacity: 1", "file, line 2 is not understood"),
        ("  cache_capacity: 1", "file, line 1 sets cache_capacity, which horovodrun does not know"),
        ("- params", "file, line 1 is not understood (--config-file): a section was expected"),
        ("? [params]\n: 3", "file, line 1 is not understood"),
        ("controller: [mpi]", "file, line 1 is not understood"),
        ("\x01", "file is not YAML (--config-file): unacceptable character"),
    ],
)
def test_a_line_that_nothing_reads_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        parse_settings(text, "file")


def test_a_value_of_the_file_is_checked_like_a_flag() -> None:
    with pytest.raises(UsageError, match=re.escape("params.cache_capacity (--config-file) must be a whole number")):
        values(settings="params:\n  cache_capacity: many")
    with pytest.raises(UsageError, match=re.escape("autotune.enabled (--config-file) must be true or false; received 'perhaps'")):
        values(settings="autotune:\n  enabled: perhaps")
    assert controller_of(parse_settings("controller: MPI", "file")) == "mpi"
    with pytest.raises(UsageError, match="controller must be gloo or mpi"):
        controller_of({"controller": "tcp"})


# ---- hosts -----------------------------------------------------------------------------------------------------------


def test_hosts(tmp_path: Path) -> None:
    assert hosts.hosts_of("a:2,b,c:1, a:1") == (("a", 3), ("b", 1), ("c", 1))
    file = tmp_path / "hosts"
    file.write_text("# ours\na slots=2\n\nb slots = 4 # the big one\nc\nd:3\n")
    assert hosts.hosts_in(file) == (("a", 2), ("b", 4), ("c", 1), ("d", 3))
    assert hosts.first_slots((("a", 2), ("b", 4)), 3) == (("a", 2), ("b", 1))
    assert hosts.first_slots((("a", 2), ("b", 4)), None) == (("a", 2), ("b", 4))
    assert hosts.is_here("localhost") and hosts.is_here(socket.gethostname()) and not hosts.is_here("elsewhere")


@pytest.mark.parametrize("text", ["a:0", "a:two", "", "a:1,,b:1", "a b:1", "-oProxyCommand", "a,-b:1"])
def test_hosts_that_make_no_sense_are_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="-H must be host:slots"):
        hosts.hosts_of(text)
    with pytest.raises(UsageError, match="cannot be read"):
        hosts.hosts_in(tmp_path / "nowhere")
    (tmp_path / "empty").write_text("# nobody\n")
    with pytest.raises(UsageError, match="names no host"):
        hosts.hosts_in(tmp_path / "empty")
    (tmp_path / "wrong").write_text("a slots=0\n")
    with pytest.raises(UsageError, match="line 1 must be `host slots=N`"):
        hosts.hosts_in(tmp_path / "wrong")


# ---- other launchers -------------------------------------------------------------------------------------------------


def test_srun_gets_hosts_as_they_are_asked_for() -> None:
    even = by_srun(LaunchRequest(4, (("a", 2), ("b", 2)), ("p",), "logs"), {"SLURM_STEP_ID": "0", "SLURM_JOB_GPUS": "0,1"})
    assert even[0] == "srun" and even[-1] == "p"
    assert {
        "--nodes=2",
        "--nodelist=a,b",
        "--ntasks-per-node=2",
        "--overlap",
        "--gpu-bind=none",
        "--output=logs/rank-%t.log",
    } <= set(even)
    uneven = by_srun(LaunchRequest(3, (("a", 2), ("b", 1)), ("p",)), {})
    assert {"--distribution=arbitrary", "--nodelist=a,a,b"} <= set(uneven)
    assert not {"--overlap", "--gpu-bind=none"} & set(uneven)


def test_mpirun_gets_hosts_variables_and_options() -> None:
    wishes = MpiLaunchOptions("--map-by 'ppr:2:node'", "--bind-to core", True, 2222, "key")
    words = by_mpirun("mpirun", True, LaunchRequest(3, (("a", 2), ("b", 1)), ("p", "x")), wishes, ["PATH"])
    line = " ".join(words)
    assert line.startswith("mpirun -np 3 -H a:2,b:1 ") and line.endswith("--bind-to core --map-by ppr:2:node p x")
    assert "-x PATH" in line and "plm_rsh_agent ssh -p 2222 -i key" in line
    assert by_mpirun("mpirun", False, LaunchRequest(2, None, ("p",)), MpiLaunchOptions(), ["PATH"]) == [
        "mpirun",
        "-np",
        "2",
        "--bind-to",
        "none",
        "p",
    ]


@pytest.mark.parametrize(
    ("wishes", "flag"),
    [
        (MpiLaunchOptions(tcp=True), "--tcp"),
        (MpiLaunchOptions(ssh_port=22), "--ssh-port"),
        (MpiLaunchOptions(ssh_key="k"), "--ssh-identity-file"),
    ],
)
def test_what_only_open_mpi_understands_is_refused_for_another(wishes: MpiLaunchOptions, flag: str) -> None:
    with pytest.raises(UsageError, match=f"{flag} works with Open MPI only, and /opt/mpirun is another MPI"):
        by_mpirun("/opt/mpirun", False, LaunchRequest(2, None, ("p",)), wishes, [])


def test_arguments_for_mpirun_with_an_open_quote_are_refused() -> None:
    for wishes, flag in ((MpiLaunchOptions(words="'"), "--mpi-args"), (MpiLaunchOptions(binding="'"), "--binding-args")):
        with pytest.raises(UsageError, match=f"{flag} .* cannot be split into words: No closing quotation"):
            by_mpirun("mpirun", True, LaunchRequest(2, None, ("p",)), wishes, [])


def test_ssh_carries_what_ranks_need_and_no_secrets() -> None:
    env = {"PATH": "/bin", "HOROVOD_CYCLE_TIME": "2", "SECRET_KEY": "x", "UNISONO_RANK": "0", "TF_VAR_password": "x"}
    env |= {"UNISONO_ELASTIC_SECRET": "x", "UNISONO_TOKEN": "x", "TF_TOKEN_app_terraform_io": "x", "KERAS_API_KEY": "x"}
    hosts = (("localhost", 2), ("b", 1))
    plan = OverSsh(hosts, "a:20000", "job", "hidden", ("python", "my file.py"), (), env, Path("/work dir"), 22, "key")
    here, there = plan.commands()
    assert here.argv[:3] == ("env", "PATH=/bin", "HOROVOD_CYCLE_TIME=2")
    assert there.argv[:-1] == ("ssh", *OPTIONS, "-p", "22", "-i", "key", "b")
    assert there.argv[-1].startswith("cd '/work dir' && exec env PATH=/bin HOROVOD_CYCLE_TIME=2 ")
    assert there.argv[-1].endswith("-- python 'my file.py'") and "--on-nodes 2,1" in there.argv[-1]
    for words in (here.argv, there.argv):
        line = " ".join(words)
        for secret in ("SECRET_KEY", "TF_VAR_password", "UNISONO_ELASTIC_SECRET", "UNISONO_TOKEN", "TF_TOKEN", "API_KEY", "hidden"):
            assert secret not in line
    assert here.secret == there.secret == "hidden"


def test_what_a_program_is_called() -> None:
    for line, name in (
        ("python -u sub/train.py --lr 1", "train.py"),
        ("python -m pkg.train", "pkg.train"),
        ("train", "train"),
        ("python -u -- -x", "python"),
    ):
        assert job_name(line.split()) == name
    assert job_name(("python", "-c", "import sys; main(sys.argv[1])", "/tmp/.horovod-run-1")) == ".horovod-run-1"


def signals(*names: str) -> HostCommand:
    """A host that answers nothing: an ssh that hangs. It sends us these signals, each when we have passed on the one before."""
    return HostCommand("hung", ("sh", "-c", "".join(f"kill -{name} $PPID; read word; " for name in names) + "exec sleep 600"))


def test_an_ssh_that_hangs_is_given_up_after_a_signal(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(hosts_run, "ACKNOWLEDGE_S", 0.2)
    assert run_on_hosts([signals("TERM")], control_stdin=False) == 128 + signal.SIGTERM
    assert "no answer from: hung" in capfd.readouterr().err


def test_an_answer_to_an_earlier_signal_is_none_to_this_one(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """SLURM sends SIGUSR1 some time before SIGTERM."""
    monkeypatch.setattr(hosts_run, "ACKNOWLEDGE_S", 0.2)
    again = "kill -USR1 $PPID; read word; "  # when it is passed on, what was said before it has been heard
    hangs = f"{again} echo {SIGNAL_RECEIVED.decode()} >&2; {again} {again} kill -TERM $PPID; exec sleep 600"
    assert run_on_hosts([HostCommand("hung", ("sh", "-c", hangs))], control_stdin=False) == 128 + signal.SIGTERM
    assert "no answer from: hung" in capfd.readouterr().err


def test_an_ssh_that_hangs_is_given_up_soon_after_a_second_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts_run, "KILL_DELAY_S", 0.1)
    assert run_on_hosts([signals("INT", "INT")], control_stdin=False) == 128 + signal.SIGINT


def test_a_program_may_save_its_state_after_a_signal(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(hosts_run, "ACKNOWLEDGE_S", 1.5)
    saves = f"kill -TERM $PPID; read word; echo {SIGNAL_RECEIVED.decode()} >&2; sleep 2; echo saved after $word; exit 0"
    assert run_on_hosts([HostCommand("a", ("sh", "-c", saves))], control_stdin=False) == 0
    told = capfd.readouterr()
    assert told.out == "saved after SIGTERM\n" and told.err == "", "what launchers tell us is not for users"


def test_the_others_have_their_notice_from_the_first_failure_on(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The host that failed waits for its other ranks; that must not come on top."""
    monkeypatch.setattr(hosts_run, "FAILURE_GRACE_S", 0.1)
    fails = HostCommand("a", ("sh", "-c", f"echo {failure_report(137).decode()} >&2; read word; exit 137"))
    waits = HostCommand("b", ("sh", "-c", "read word; exit 143"))
    assert run_on_hosts([fails, waits], control_stdin=False) == 137
    assert capfd.readouterr().err == "unisono: a rank of host a ended with code 137; the other hosts will be ended in 0.1 s\n"


def test_the_code_of_the_host_that_failed_outweighs_those_of_its_victims() -> None:
    assert [first_cause(codes) for codes in ([], [1], [1, 7], [7, 1], [1, 137, 7])] == [0, 1, 7, 7, 137]
    victim, culprit = (HostCommand(name, ("sh", "-c", does)) for name, does in (("a", "exit 1"), ("b", "sleep 0.3; exit 7")))
    assert run_on_hosts([victim, culprit], control_stdin=False) == 7


# ---- what ranks are given --------------------------------------------------------------------------------------------


def environments(start: HorovodStart | None, base: Mapping[str, str], **changed: Any) -> list[dict[str, str]]:
    """Of the ranks of a node that `launch` starts."""
    config = LaunchConfig(("train.py",), **{"num_local": 2, **changed})
    if start is not None:
        config = with_horovod(config, start, base)
    nodes = config.num_local, config.num_nodes, config.node_rank
    plain = Placement(*nodes, "h:1", "n", "t", "j", 0, 1, False, (), launch_options(config))
    at = replace(plain, num_on_nodes=config.num_on_nodes, variables=config.rank_variables)
    return [rank_environment(base, at, local_rank) for local_rank in range(config.num_local)]


def test_ranks_see_all_gpus_and_the_stand_in_comes_first() -> None:
    start = HorovodStart(Path("/stand-in"), (("HOROVOD_CYCLE_TIME", "3"),))
    assert with_horovod(LaunchConfig(("train.py",), 2), start, {}).gpus == "all"
    env = environments(start, {"PYTHONPATH": "/mine", "HOROVOD_CYCLE_TIME": "9"})[1]
    assert env["PYTHONPATH"] == "/stand-in:/mine"
    for given, expected in (("", "/stand-in"), (":/mine", "/stand-in::/mine"), ("/mine:", "/stand-in:/mine:")):
        assert environments(start, {"PYTHONPATH": given})[1]["PYTHONPATH"] == expected
    assert env["HOROVOD_CYCLE_TIME"] == "3"
    assert [env[f"HOROVOD_{name}"] for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")] == list(
        "121201"
    )
    assert not [name for name in environments(None, {})[1] if name.startswith("HOROVOD_")]


def test_the_controller_is_the_engine_that_was_asked_for() -> None:
    start = HorovodStart(Path("/stand-in"))
    assert environments(start, {})[0]["HOROVOD_CONTROLLER"] == "gloo"
    for base, asked in (({"UNISONO_ENGINE": "mpi"}, None), ({}, "mpi"), ({"UNISONO_ENGINE": "shm"}, "mpi")):
        assert environments(start, base, engine=asked)[0]["HOROVOD_CONTROLLER"] == "mpi"


def test_ranks_that_an_elastic_worker_starts_do_not_know_its_driver() -> None:
    worker = worker_environment({"HOROVOD_CYCLE_TIME": "9"}, DriverAddress("::1", 1, "s", 0), "here", 0, 1, {"here": 1})
    assert set(ELASTIC) <= set(worker)
    for start in (HorovodStart(Path("/s")), None):
        env = environments(start, worker)[0]
        assert not set(ELASTIC) & set(env) and env["HOROVOD_CYCLE_TIME"] == "9"
    alone = environments(None, {"HOROVOD_ELASTIC": "1"})[0]
    assert alone["HOROVOD_ELASTIC"] == "1", "by hand and without a driver: hvd.init() refuses it"


def test_ranks_of_nodes_that_differ() -> None:
    start, nodes = HorovodStart(Path("/s")), {"num_nodes": 2, "num_on_nodes": (2, 1), "rendezvous": "a:1"}
    (env,) = environments(start, {}, num_local=1, node_rank=1, **nodes)
    assert (env["UNISONO_RANK"], env["UNISONO_WORLD_SIZE"]) == ("2", "3")
    assert [env[f"HOROVOD_{name}"] for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")] == list(
        "230112"
    )
    first = environments(start, {}, **nodes)[1]
    assert (first["HOROVOD_CROSS_RANK"], first["HOROVOD_CROSS_SIZE"]) == ("0", "1")


def test_variables_without_effect_are_named_with_the_reason() -> None:
    told = without_effect(
        {"HOROVOD_TORUS_ALLREDUCE": "1", "HOROVOD_NEW": "1", "HOROVOD_RANK": "0", "HOROVOD_EMPTY": "", "PATH": "x"}
    )
    assert told == (
        "these variables have no effect here: HOROVOD_NEW (unknown), HOROVOD_TORUS_ALLREDUCE "
        "(the all-reduce is chosen by message size and number of nodes (UNISONO_ALLREDUCE))"
    )
    assert without_effect({"HOROVOD_FUSION_THRESHOLD": "1"}) == ""
    told = without_effect({"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": "x"})
    assert told.startswith("these variables have no effect here: HOROVOD_AUTOTUNE, HOROVOD_AUTOTUNE_LOG (there is no autotuning;")


# ---- what is refused, and what is handed on --------------------------------------------------------------------------


def order(*words: str, env: dict[str, str] | None = None) -> ProgramLaunch:
    return ProgramLaunch((sys.executable, "-c", "pass"), values(*words), print, env or {})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "the number of processes is missing; give -np N"),
        ("-np 0", "-np must be at least 1"),
        ("-np 3 -H localhost:2", "-np 3 needs 3 slots, but the hosts have 2 (localhost:2)"),
        ("-np 2 --jsrun", "--jsrun is not offered; let jsrun start the processes"),
        ("-np 2 --mpi-args=-v", "--mpi-args has no effect without --mpi"),
        ("-np 2 --tcp", "--tcp has no effect without --mpi"),
        ("-np 2 --mpi --gloo", "--gloo and --mpi were both given"),
        ("-np 2 -H a:1 --hostfile b", "more than one of -H, --hostfile and --host-discovery-script"),
        ("--min-np 2 --mpi --mpi-args=-v", "mpirun cannot start an elastic job"),
        ("-np 2 --mpi --output-filename x", "--output-filename is not passed on to mpirun"),
        ("-np 2 --mpi -prefix-timestamp", "--prefix-output-with-timestamp is not possible here, because mpirun prints"),
    ],
)
def test_what_cannot_be_done_is_refused(words: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        order(*words.split()).start()


def test_inside_a_rank_it_refuses_to_start_more() -> None:
    env = {
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "PMIX_NAMESPACE": "j",
    }
    with pytest.raises(UsageError, match="let that launcher start `unisono run --horovod program`"):
        order("-np", "2", env=env).start()
    with pytest.raises(UsageError, match="let that launcher start `unisono run --horovod program`"):
        order("--min-np", "2", env=env).start()


@dataclass(frozen=True)
class Plan:
    """As the driver of elastic jobs declares it."""

    num_proc: int
    min_num_proc: int
    max_num_proc: int | None
    hosts: tuple[tuple[str, int], ...]
    discovery_script: str | None
    slots_per_host: int | None
    elastic_timeout_s: float
    reset_limit: int | None
    cooldown_range: tuple[float, float] | None
    command: tuple[str, ...]
    env: dict[str, str]
    output_folder: str | None
    timestamps: bool
    ssh_port: int | None
    ssh_identity_file: str | None
    start_timeout_s: float | None


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """What the driver is given; it ends at once with code 3."""
    given: list[Plan] = []
    module = types.ModuleType("unisono.horovod._impl.elastic.elastic_driver")

    def drive(plan: Plan) -> int:
        given.append(plan)
        return 3

    module.__dict__.update(ElasticPlan=Plan, drive=drive)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, "unisono.horovod._impl.elastic", types.ModuleType("unisono.horovod._impl.elastic"))
    return given


def elastic(plans: Sequence[Plan], words: str) -> Plan:
    assert order(*words.split()).start() == 3
    return plans[-1]


def test_an_elastic_job_is_handed_to_its_driver(plans: list[Plan]) -> None:
    plan = elastic(
        plans,
        "--min-np 2 -np 3 --max-np 4 --host-discovery-script ./find --slots-per-host 2 --elastic-timeout 60 --reset-limit 5 "
        "--blacklist-cooldown-range 1 2 --output-filename logs -prefix-timestamp --cycle-time-ms 2 --start-timeout 9 -p 22 -i key",
    )
    assert (plan.num_proc, plan.min_num_proc, plan.max_num_proc, plan.hosts) == (3, 2, 4, ())
    assert (plan.discovery_script, plan.slots_per_host, plan.elastic_timeout_s, plan.reset_limit) == ("./find", 2, 60.0, 5)
    assert (plan.cooldown_range, plan.output_folder, plan.timestamps) == ((1, 2), "logs", True)
    assert (plan.ssh_port, plan.ssh_identity_file) == (22, "key")
    assert plan.command == (sys.executable, "-c", "pass")
    assert plan.env["HOROVOD_CYCLE_TIME"] == "2" and plan.env["UNISONO_TIME_LIMIT_S"] == "9" and plan.start_timeout_s == 9.0
    assert plan.env["PYTHONPATH"].endswith("stand_in")


def test_an_elastic_job_needs_few_flags(plans: list[Plan]) -> None:
    plan = elastic(plans, "--min-np 2 --max-np 4")
    assert (plan.num_proc, plan.min_num_proc, plan.max_num_proc, plan.hosts) == (2, 2, 4, (("localhost", 4),))
    plan = elastic(plans, "--min-np 1 -H a:1,b:2")
    assert (plan.num_proc, plan.hosts, plan.elastic_timeout_s) == (1, (("a", 1), ("b", 2)), 600.0)
    assert plan.start_timeout_s is None
    assert order("--min-np", "1", env={"HOROVOD_START_TIMEOUT": "9", "HOROVOD_ELASTIC_TIMEOUT": "8"}).start() == 3
    assert (plans[-1].start_timeout_s, plans[-1].elastic_timeout_s) == (9.0, 8.0)
    for wrong in ("--min-np 3 --max-np 2", "--min-np 3 -np 2", "--min-np 0"):
        with pytest.raises(UsageError, match=r"must be 1 or more, .*; received --min-np"):
            order(*wrong.split()).start()


def test_an_elastic_job_in_an_allocation_of_several_nodes_uses_them_all(plans: list[Plan]) -> None:
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "SLURMD_NODENAME": "n1", "SLURM_TASKS_PER_NODE": "2(x2),1"}
    assert order("--min-np", "2", env=env).start() == 3
    assert plans[-1].hosts == (("n1", 2), ("n2", 2), ("n3", 1))
    with pytest.raises(UsageError, match=r"has 3 nodes, but SLURM_TASKS_PER_NODE \(not set\) does not say"):
        order("--min-np", "2", env={name: env[name] for name in env if name != "SLURM_TASKS_PER_NODE"}).start()


def test_options_of_ssh_without_ssh_say_so(plans: list[Plan], capsys: pytest.CaptureFixture[str]) -> None:
    elastic(plans, "--min-np 2 -p 22")
    assert "--ssh-port has no effect here: all processes run on this machine, without ssh" in capsys.readouterr().out
    elastic(plans, "--min-np 2 -p 22 -H 192.0.2.1:2")
    assert "no effect" not in capsys.readouterr().out


def test_a_folder_that_cannot_be_made_here_is_reported_with_its_flag(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot be created \(--output-filename\): Not a directory; choose another"):
        order("-np", "2", "--output-filename", str(tmp_path / "file" / "logs")).start()


def test_a_folder_that_cannot_be_made_under_slurm_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "SLURMD_NODENAME": "n1", "SLURM_NTASKS": "3"}
    with pytest.raises(UsageError, match=r"cannot be created \(--output-filename\): Not a directory; choose another"):
        order("-np", "2", "--output-filename", str(tmp_path / "file" / "logs"), env=env).start()


def test_an_editable_horovod_is_found_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """pip install -e puts a finder of its own beside the folders."""

    class Editable:
        @staticmethod
        def find_spec(name: str, path: object, target: object = None) -> ModuleSpec | None:  # noqa: ARG004 - as importlib calls it
            where = tmp_path / "horovod" / "__init__.py"
            return spec_from_file_location(name, where) if name == "horovod" else None

    assert real_horovod([], sys.meta_path) is None
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, object(), Editable])  # the first is of a kind that has no find_spec
    assert real_horovod([]) is None
    assert real_horovod([], sys.meta_path) == str(tmp_path / "horovod" / "__init__.py")


@pytest.mark.parametrize(
    ("words", "is_here"),
    [
        ("{there}/train.py --data x.py", False),
        ("-u -W error -X dev {there}/train.py", False),
        ("-Wdefault::DeprecationWarning --check-hash-based-pycs never {there}/train.py", False),
        ("{there}", False),
        ("-m pytest {there}/train.py", True),
        ("-mpytest {there}/train.py", True),
        ("-um pytest {there}/train.py", True),
        ("-c pass {there}/train.py", True),
        ("- {there}/train.py", True),
        ("", True),
    ],
)
def test_the_first_folder_of_the_python_path(words: str, is_here: bool, tmp_path: Path) -> None:
    assert first_folder(words.format(there=tmp_path).split()) == (Path.cwd() if is_here else tmp_path)


@pytest.mark.parametrize(
    ("words", "is_refused"),
    [
        ("{python} -m pytest {there}/test_x.py", True),
        ("{python} -c pass", True),
        ("sh -c {there}/train.sh", True),
        ("/no/where/python3 -m train", True),
        ("{python} {there}/train.py", False),
        ("/no/where/python3 {there}/train.py", False),
    ],
)
def test_a_horovod_in_the_current_folder_is_refused_where_it_would_be_found_first(
    words: str, is_refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rank_start, "command", tuple)
    program = words.format(python=sys.executable, there=tmp_path / "there").split()
    if is_refused:
        with pytest.raises(
            UsageError, match=r"horovod/__init__.py is also called horovod, .* rename or move it, start from another"
        ):
            rank_start.horovod_start(program)
    else:
        assert rank_start.horovod_start(program).variables == ()


def test_an_installed_horovod_is_to_be_uninstalled_and_a_folder_to_be_moved(tmp_path: Path) -> None:
    own, installed = tmp_path / "horovod.py", tmp_path / "site-packages" / "horovod" / "__init__.py"
    installed.parent.mkdir(parents=True)
    for file, remedy in ((own, "rename or move it"), (installed, "pip uninstall horovod")):
        file.write_text("")
        with pytest.raises(UsageError, match=remedy):
            refuse_a_real_one([str(file.parent if file is own else file.parents[1])])


# ---- the command -----------------------------------------------------------------------------------------------------


def test_help_version_and_build(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["horovodrun", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "unisono horovodrun -np 4 python train.py" in shown
    assert all(flag.names[0] in shown for flag in FLAGS)
    assert main(["horovodrun", "--version"]) == 0
    assert capsys.readouterr().out.startswith("0.28.1 (unisono ")
    assert main(["horovodrun", "-cb"]) == 0
    assert "[X] PyTorch" in capsys.readouterr().out


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["-np", "2"],
        ["--nonsense"],
        ["-np"],
        ["-np", "2", "no-such-program"],
        ["-np", "2", "--config-file", "/no", "x"],
    ):
        assert main(["horovodrun", *words]) == 2
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("words", ["--timestamps", "--on-failure continue", "--bind none", "--job x", "--log-dir x"])
def test_options_of_the_launcher_are_refused_where_another_one_starts(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--horovod", *words.split(), "true"]) == 2
    assert f"{words.split()[0]} has no effect without -n" in capsys.readouterr().err
