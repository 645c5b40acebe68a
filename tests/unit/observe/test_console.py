"""Progress for people: plain lines in a file, a bar on a terminal."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from dataclasses import replace
from itertools import count

import pytest

from tests.unit.observe.made_up_run import END, START, epoch, replay_run, step
from unisono.observe.console import Console
from unisono.observe.quantities import duration, rate, value

SEQUENCE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def pass_s(self, seconds: float) -> None:
        self.now += seconds


class AsciiStream(io.StringIO):
    encoding = "ascii"


class UnicodeStream(io.StringIO):
    encoding = "utf-8"


RESULTS = "results in runs/digits: curves.png (a picture), summary.json, metrics.jsonl, weights.safetensors"


def test_a_log_file_gets_one_line_for_the_start_each_epoch_and_the_end() -> None:
    stream, clock = io.StringIO(), Clock()
    replay_run([Console(stream, clock=clock)], lambda: clock.pass_s(0.1))
    assert stream.getvalue().splitlines() == [
        "digits: 2 workers (shm, cpu), global batch 100, 1,000 samples, 4,810 parameters; results in runs/digits",
        "epoch 1/3  loss 0.5000  val_loss 0.2500  val_accuracy 0.9000  812 samples/s  1.0 s  best",
        "epoch 2/3  loss 0.5000  val_loss 0.2500  val_accuracy 0.9100  812 samples/s  1.0 s  best",
        "epoch 3/3  loss 0.5000  val_loss 0.2500  val_accuracy 0.9200  812 samples/s  1.0 s",
        "finished: 30 steps in 3.0 s; best epoch 2 (val_accuracy 0.9100)",
        RESULTS,
    ]


def test_the_last_lines_say_which_weights_count() -> None:
    for weights, told, file in (("final", "", "weights"), ("best", "; the best weights count", "best")):
        for metrics, more in (({}, told), ({"test_loss": 0.3}, f"; test_loss 0.3000 ({weights} weights)")):
            stream = io.StringIO()
            console = Console(stream, clock=Clock())
            console.started(START)
            console.ended(replace(END, summary={"steps": 30, "wall_s": 3.0, "metrics": metrics, "weights": weights}))
            *_, ended, results = stream.getvalue().splitlines()
            assert ended == f"finished: 30 steps in 3.0 s{more}"
            assert results.endswith(f", {file}.safetensors")


def test_a_monitored_run_says_how_busy_its_gpu_was() -> None:
    stream = io.StringIO()
    console = Console(stream, clock=Clock())
    console.started(START)
    console.ended(replace(END, summary={**END.summary, "monitor": [{"gpu_load": {"mean": 0.875, "peak": 1.0}}]}))
    assert stream.getvalue().splitlines()[-2] == "the GPU was busy 88% of the time"


def test_a_long_epoch_says_where_it_stands_every_30_s() -> None:
    stream, clock = io.StringIO(), Clock()
    console = Console(stream, clock=clock)
    console.started(START)
    for number in range(10):
        clock.pass_s(10.0)
        console.step(step(number))
    assert stream.getvalue().splitlines()[1:] == [
        "epoch 1/3  step 4/10  loss 0.5000  accuracy 0.7500  10.0 samples/s  4:20 left",
        "epoch 1/3  step 7/10  loss 0.5000  accuracy 0.7500  10.0 samples/s  3:50 left",
        "epoch 1/3  step 10/10  loss 0.5000  accuracy 0.7500  10.0 samples/s  3:20 left",
    ]


def test_the_speed_leaves_the_validation_out_and_the_time_left_does_not() -> None:
    stream, clock = io.StringIO(), Clock()
    console = Console(stream, clock=clock, line_every_s=1.0)
    console.started(START)
    for number in range(12):
        clock.pass_s(1.0)
        console.step(step(number))
        if number == 9:
            console.evaluating(1, 1)
            clock.pass_s(110.0)
            console.epoch(epoch(0))
    last = stream.getvalue().splitlines()[-1]
    assert last == "epoch 2/3  step 2/10  loss 0.5000  accuracy 0.7500  100 samples/s  3:18 left"  # 11 s a step, 18 of them


def test_on_a_terminal_a_bar_is_redrawn_and_epochs_stay() -> None:
    stream, clock = UnicodeStream(), Clock()
    replay_run([Console(stream, columns=100, clock=clock)], lambda: clock.pass_s(0.05))
    *lines, rest = stream.getvalue().split("\n")
    assert rest == "", "the cursor is left at the begin of a line"
    shown = [line.rpartition("\r\x1b[K")[2] for line in lines]
    assert [line.split("  ")[0] for line in shown[1:4]] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    drawn = [SEQUENCE.sub("", part) for part in lines[2].split("\r") if part][:-1]
    assert 5 <= len(drawn) <= 7, "at most every 0.1 s"
    assert drawn[1] == f"epoch 2/3 {'━' * 4}╸{' ' * 10} step 3/10 · loss 0.5000 · accuracy 0.7500 · 2.00k samples/s · 0.8 s left"


def test_the_usual_terminal_shows_all_that_counts() -> None:
    stream, clock = UnicodeStream(), Clock()
    replay_run([Console(stream, columns=80, clock=clock)], lambda: clock.pass_s(0.5))
    assert "\repoch 2/3 ━━━━━      loss 0.5000 · accuracy 0.7500 · 200 samples/s · 7.5 s left\x1b[K" in stream.getvalue()


@pytest.mark.parametrize("columns", [1, 5, 20, 30, 40, 50, 60, 70, 80, 90, 100, 150, 250])
def test_the_bar_never_fills_the_last_column(columns: int) -> None:
    stream, clock = UnicodeStream(), Clock()
    console = Console(stream, columns=columns, clock=clock, colour=True)
    console.started(replace(START, num_epochs=1000, steps_per_epoch=100_000))
    stream.truncate(0)
    for number in range(20):
        clock.pass_s(1.0)
        console.step(step(number, loss=1e-7))
    console.evaluating(100, 10_000)
    drawn = [SEQUENCE.sub("", part) for part in stream.getvalue().split("\r") if part.strip("\0")]
    assert len(drawn) == 20
    assert all(len(text) <= columns - 1 for text in drawn)
    assert columns < 40 or all("━" in text for text in drawn)
    assert columns < 20 or all(text.startswith("epoch ") for text in drawn)


def test_without_unicode_and_colour_the_bar_is_plain() -> None:
    stream, clock = AsciiStream(), Clock()
    replay_run([Console(stream, columns=100, clock=clock)], lambda: clock.pass_s(0.2))
    assert stream.getvalue().isascii()
    assert f"epoch 2/3 {'-' * 6}{' ' * 14} step 3/10  loss 0.5000  accuracy 0.7500" in stream.getvalue()
    assert set(SEQUENCE.findall(stream.getvalue())) == {"\x1b[K"}
    coloured = UnicodeStream()
    replay_run([Console(coloured, columns=100, colour=True, clock=clock)], lambda: clock.pass_s(0.2))
    assert "\x1b[32m" in coloured.getvalue()


def test_a_validation_has_its_bar_too() -> None:
    stream, clock = UnicodeStream(), Clock()
    console = Console(stream, columns=80, clock=clock)
    console.started(START)
    console.step(step(0))
    for done in range(1, 5):
        clock.pass_s(0.05)
        console.evaluating(done, 4)
    drawn = [SEQUENCE.sub("", part) for part in stream.getvalue().split("\r")[2:]]
    assert drawn == [f"epoch 1/3 {'━' * 20}{' ' * 20} validation 2/4", f"epoch 1/3 {'━' * 40} validation 4/4"]


def test_a_message_in_between_replaces_the_bar_and_stays() -> None:
    stream, clock = UnicodeStream(), Clock()
    console = Console(stream, columns=80, clock=clock)
    console.started(START)
    console.step(step(0))
    console.say("warning: patches overlap")
    clock.pass_s(1.0)
    console.step(step(1))
    console.close()
    console.close()
    _, bar_and_word, after = stream.getvalue().split("\n")
    assert bar_and_word.endswith("\r\x1b[Kwarning: patches overlap")
    assert after.endswith("\x1b[K\r\x1b[K"), "a run that fails leaves no bar behind"


def test_waiting_for_data_is_shown() -> None:
    stream, clock = io.StringIO(), Clock()
    console = Console(stream, clock=clock)
    console.started(START)
    clock.pass_s(10.0)
    console.epoch(replace(epoch(0), data_wait_s=3.1))
    assert "10 s  waited 31% of it for data" in stream.getvalue()


def test_a_resumed_run_says_so_and_one_without_epochs_ends() -> None:
    stream = io.StringIO()
    console = Console(stream)
    console.started(replace(START, first_step=20))
    console.ended(END)
    assert stream.getvalue().splitlines()[1:] == ["resumed from step 20", "finished: 30 steps in 3.0 s", RESULTS]


def test_numbers_are_short() -> None:
    assert [value(x) for x in (0.0, 0.123456, 1e-5, -12.3, 123456.0, float("nan"), float("inf"))] == [
        "0.0000", "0.1235", "1.000e-05", "-12.3000", "1.235e+05", "nan", "inf",
    ]  # fmt: skip
    assert [rate(x) for x in (0.0, 7.314, 81.22, 812.4, 999.8, 12345.0, 1.2e6)] == [
        "0.00", "7.31", "81.2", "812", "1.00k", "12.3k", "1.20M",
    ]  # fmt: skip
    assert [duration(x) for x in (0.04, 9.94, 9.96, 59.4, 59.6, 187.0, 3599.7, 3723.0)] == [
        "0.0 s", "9.9 s", "10 s", "59 s", "1:00", "3:07", "1:00:00", "1:02:03",
    ]  # fmt: skip


def test_a_quiet_step_only_reads_the_clock() -> None:
    stream, ticks = io.StringIO(), count()
    console = Console(stream, columns=80, clock=lambda: next(ticks) * 1e-6)
    console.started(START)
    console.step(step(0))
    size = len(stream.getvalue())

    def never() -> dict[str, float]:
        raise AssertionError("metrics were computed for a step that is not shown")

    before = next(ticks)
    console.step(step(1)._replace(so_far=never))
    assert next(ticks) == before + 2, "one look at the clock"
    assert len(stream.getvalue()) == size


PROGRAM = """
import sys
from tests.unit.observe.made_up_run import replay_run
from unisono.cluster.terminal import terminal
from unisono.observe.console import Console
at = terminal()
replay_run([Console(sys.stdout, at.columns, at.colour)])
"""


def test_on_a_real_terminal() -> None:
    master, slave = pty.openpty()
    try:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 90, 0, 0))
        env = {"PATH": os.environ["PATH"], "TERM": "xterm", "PYTHONIOENCODING": "utf-8", "NO_COLOR": "1"}
        process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=slave, env=env)
        os.close(slave)
        shown = b""
        while b"results in runs/digits:" not in shown or not shown.endswith(b"\n"):
            shown += os.read(master, 65536)
        assert process.wait(30) == 0
    finally:
        os.close(master)
    text = shown.decode()
    assert "\repoch 1/3 ━━━╸" in text
    assert text.count("\n") == 6
    assert "finished: 30 steps in 3.0 s; best epoch 2 (val_accuracy 0.9100)\r\n" in text
    assert text.rstrip().endswith(RESULTS)
