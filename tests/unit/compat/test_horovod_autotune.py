"""The tuner of the Horovod front, without threads: the search on made-up engines, the meter, and how all ranks hear a setting."""

from __future__ import annotations

import csv
import random
import resource
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch

from unisono.cluster.horovod_env import HorovodSettings, settings_of
from unisono.compat.horovod import autotune
from unisono.compat.horovod.agreement import Agreement
from unisono.compat.horovod.autotune import UNTUNED, Follower, Leader, Meter
from unisono.compat.horovod.autotune_log import HEAD, Log
from unisono.compat.horovod.autotune_search import MIB, NUM_TURNS, Setting, Verdict, beats, candidates, posterior, search
from unisono.compat.horovod.negotiation import Negotiation
from unisono.compat.horovod.request import ALLREDUCE, SETTINGS, Request
from unisono.errors import UsageError

BAD, GOOD = Setting(0, 20e-3), Setting(128 * MIB, 1e-3)


def fusing(setting: Setting) -> float:
    """Seconds of a step: each bucket has a price, and one that is too large cannot travel while others are computed."""
    threshold = setting.fusion_threshold_bytes
    num_buckets = 200 if threshold < 40_000 else max(1, 8e6 / threshold)
    return 20e-3 + num_buckets * 0.3e-3 + 1.5 * setting.cycle_time_s + 6e-3 * min(1, threshold / 8e6)


def flat(_: Setting) -> float:
    return 20e-3


def tuned(start: Setting, step_s: Callable[[Setting], float], noise: float, seed: int) -> tuple[Verdict, list[Setting]]:
    """On an engine that is now and then disturbed by others, and then twice as slow."""
    chance, asked = random.Random(seed), []
    going = search(start, warmup_samples=3, max_samples=20, noise=0.8)
    setting = next(going)
    while True:
        asked.append(setting)
        seconds = step_s(setting) * (1 + abs(chance.gauss(0, noise))) * (2 if chance.random() < 0.03 else 1)
        try:
            setting = going.send(1 / seconds)
        except StopIteration as end:
            return end.value, asked


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1])
def test_from_a_bad_start_it_comes_near_the_best(noise: float) -> None:
    best_s = min(fusing(setting) for setting in candidates(BAD))
    assert fusing(BAD) > 4 * best_s
    kept = [tuned(BAD, fusing, noise, seed)[0].kept for seed in range(20)]
    excess = sorted(fusing(setting) / best_s for setting in kept)
    assert excess[-1] < 1.25
    assert excess[10] < 1.1


def test_where_nothing_helps_the_start_stays() -> None:
    for noise in (0.02, 0.1):
        others = sum(tuned(GOOD, flat, noise, seed)[0].kept != GOOD for seed in range(60))
        assert others <= 3, noise


def test_what_is_worse_is_never_kept() -> None:
    for seed in range(20):
        verdict, _ = tuned(GOOD, lambda setting: 10e-3 if setting == GOOD else 12e-3, 0.05, seed)
        assert verdict.kept == GOOD


def test_the_samples_asked_for() -> None:
    verdict, asked = tuned(BAD, fusing, 0.02, 1)
    assert asked[:4] == [BAD] * 4  # to warm up, and where the search begins
    assert len(asked) == 3 + 20 + 2 * NUM_TURNS
    last = asked[23:]
    assert last.count(BAD) == last.count(verdict.best) == NUM_TURNS
    assert all({first, second} == {BAD, verdict.best} for first, second in zip(last[::2], last[1::2], strict=True))
    assert verdict.kept == verdict.best
    assert verdict.score == verdict.best_score > verdict.start_score


def test_settings_that_do_not_differ_seldom_win() -> None:
    """All orders in which the samples of two equal settings can come."""
    orders = list(combinations(range(2 * NUM_TURNS), NUM_TURNS))
    everything = set(range(2 * NUM_TURNS))
    won = sum(beats([1000.0**n for n in one], [1000.0**n for n in sorted(everything - set(one))]) for one in orders)
    assert 0 < won / len(orders) < 0.02


def test_one_disturbed_sample_decides_nothing_and_a_little_better_is_not_better() -> None:
    assert beats([0.1, 11, 11, 11], [10, 10, 10, 50])
    assert not beats([0.1, 0.1, 11, 11], [10, 10, 10, 10])
    assert not beats([10.1] * 4, [10.0] * 4)


def test_the_process_goes_through_exact_scores() -> None:
    tried, scores = [BAD, GOOD, Setting(MIB, 5e-3)], [1.0, 3.0, 2.0]
    mean, deviation = posterior(tried, scores, tried, noise=0.0)
    np.testing.assert_allclose(mean, (np.array(scores) - 2) / np.std(scores), atol=1e-4)
    np.testing.assert_allclose(deviation, 0, atol=1e-2)
    _, unsure = posterior(tried, scores, [Setting(128 * MIB, 10e-3)], noise=0.0)
    assert unsure[0] > 0.5
    same, _ = posterior([BAD, BAD], [2.0, 2.0], [BAD], noise=0.8)  # no spread at all
    assert same[0] == 0


# ---- the meter -----------------------------------------------------------------------------------------------------------


def agreement(name: str, error: str | None = None, num: int = 250, comes_again: bool = True) -> Agreement:
    request = Request(f"allreduce.{name}", ALLREDUCE, ((torch.float32, (num,)),), comes_again=comes_again)
    return Agreement((request,) * 2, error)


def test_a_sample_is_bytes_per_time_over_whole_steps() -> None:
    meter = Meter(num_steps=2)
    first, second = [agreement("a"), agreement("b")], [agreement("c")]
    found = []
    for step in range(8):
        for part, agreed in enumerate((first, second)):
            found.append(meter.sample(agreed, now=10.0 * step + part))
        if found[-2] is not None:
            meter.begin()
    # From the beginning of the second step on, two steps of 3 kB in 10 s each; then the same again.
    assert found.index(6000 / 20 / 1e6) == 6
    assert len([score for score in found if score is not None]) == 2


def test_refused_and_unnamed_operations_make_no_steps() -> None:
    meter = Meter(num_steps=1)
    for now in range(10):
        assert meter.sample([agreement("a", error="differs"), agreement(f"noname.{now}", comes_again=False)], now) is None


# ---- all ranks -----------------------------------------------------------------------------------------------------------


def test_all_ranks_hear_a_setting_in_the_same_round() -> None:
    settings = HorovodSettings(fusion_threshold_bytes=7, cycle_time_s=1.0)
    ranks = [Negotiation(rank, range(2), 16) for rank in range(2)]
    request = Request("allreduce.a", ALLREDUCE, ((torch.float32, (3,)),))
    for one in ranks:
        one.submit(request)
    ranks[0].submit(Request(SETTINGS, SETTINGS, root=9, prescale=0.5))
    told = [one.tell() for one in ranks]
    for one in ranks:
        assert [found.name for found in one.hear_told(told)] == ["allreduce.a"]
        assert not one.is_waiting
        heard = Follower().heard(told, settings)
        assert (heard.fusion_threshold_bytes, heard.cycle_time_s) == (9, 0.5)
    assert Follower().heard((), settings) is settings
    assert UNTUNED.heard(told, settings) is settings


class Job:
    """Rank 0 of a made-up job: its clock, and the settings that were told."""

    def __init__(self, leader: Leader, settings: HorovodSettings, monkeypatch: pytest.MonkeyPatch) -> None:
        self.leader, self.settings = leader, settings
        self.now, self.told = 0.0, list[Request]()
        monkeypatch.setattr(autotune, "monotonic", lambda: self.now)

    def submit(self, request: Request) -> None:
        self.told.append(request)

    def step(self, step_s: Callable[[Setting], float]) -> None:
        self.told.clear()
        self.leader.tell(self)  # type: ignore[arg-type]
        self.settings = self.leader.heard([self.told, []], self.settings)
        self.now += step_s(Setting(self.settings.fusion_threshold_bytes, self.settings.cycle_time_s))
        self.leader.carried([agreement(str(number), num=10_000) for number in range(3)])


@pytest.mark.parametrize(("step_s", "words"), [(fusing, "autotune keeps"), (flat, "autotune stays with fusion threshold 0 MiB")])
def test_rank_0_measures_tells_logs_and_ends(
    step_s: Callable[[Setting], float],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "log.csv"
    settings = HorovodSettings(fusion_threshold_bytes=0, cycle_time_s=20e-3, autotune=True, autotune_steps_per_sample=2)
    job = Job(Leader(settings, Log(str(path), has_cache=True)), settings, monkeypatch)
    for _ in range(200):
        job.step(step_s)
    job.leader.close()
    said = capsys.readouterr().err
    assert said.count("unisono: ") == 1
    assert words in said
    assert path.read_text().splitlines()[0] == HEAD
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert len(rows) in ([24 + 2 * NUM_TURNS] if step_s is fusing else [24, 24 + 2 * NUM_TURNS])
    kept = Setting(job.settings.fusion_threshold_bytes, job.settings.cycle_time_s)
    assert int(rows[-1]["tensor_fusion_threshold"]) == kept.fusion_threshold_bytes
    assert float(rows[-1]["cycle_time_ms"]) == pytest.approx(kept.cycle_time_s * 1e3)
    assert float(rows[-1]["score"]) == pytest.approx(120_000 / 1e6 / step_s(kept))
    assert {row["cache_enabled"] for row in rows} == {"1"}
    assert (kept == BAD) == (step_s is flat)


def test_a_job_that_ends_too_early_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    settings = HorovodSettings(autotune=True)
    job = Job(Leader(settings, Log("", has_cache=True)), settings, monkeypatch)
    for _ in range(30):
        job.step(flat)
    job.leader.close()
    assert "not finished after 2 samples" in capsys.readouterr().err


def test_a_log_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OSError, match="No space left"):
        Log("/dev/full", has_cache=False)
    limits, path = resource.getrlimit(resource.RLIMIT_FSIZE), tmp_path / "log.csv"
    log = Log(str(path), has_cache=False)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, limits[1]))
    try:
        log.add(GOOD, 1.0)
        log.add(GOOD, 1.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    log.close()
    assert capsys.readouterr().err.count(f"the log of the autotuning ends here: {path}") == 1


def test_settings() -> None:
    assert not settings_of({}).autotune
    env = {
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_LOG": "log.csv",
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "0",
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "5",
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "7",
        "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": "0.5",
    }
    found = settings_of(env)
    assert found.autotune
    assert found.autotune_log == "log.csv"
    assert (found.autotune_warmup_samples, found.autotune_steps_per_sample, found.autotune_max_samples) == (0, 5, 7)
    assert found.autotune_noise == 0.5


@pytest.mark.parametrize("name", ["STEPS_PER_SAMPLE", "BAYES_OPT_MAX_SAMPLES"])
def test_no_samples_make_no_sense(name: str) -> None:
    with pytest.raises(UsageError, match=f"HOROVOD_AUTOTUNE_{name} must be 1 or more"):
        settings_of({f"HOROVOD_AUTOTUNE_{name}": "0"})
