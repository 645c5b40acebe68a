"""Waits for a GPU are counted from the warnings of torch's mode, here made up: in training steps alone, with their lines."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import unisono as un
from unisono.observe import open_observers
from unisono.observe.host_waits import ALGORITHMS, HostWaits, SyncMode, place_in_step
from unisono.observe.monitor import Monitor

HERE = __file__


class MadeUpMode:
    """Stands for torch's mode."""

    def __init__(self, value: int = 0) -> None:
        self.value = value

    def write(self, value: int) -> None:
        warnings.warn("Synchronization debug mode is a prototype feature", UserWarning, stacklevel=1)
        self.value = value

    @property
    def calls(self) -> SyncMode:
        return SyncMode(lambda: self.value, self.write)


def wait() -> None:
    warnings.warn("called a synchronizing CUDA operation (Triggered internally at ...)", UserWarning, stacklevel=1)


def as_algorithm(name: str, file: str = f"{ALGORITHMS}made_up.py") -> Callable[[Callable[[], None]], None]:
    """A function of this name in a file of algorithms, which calls another one."""
    names: dict[str, Any] = {}
    exec(compile(f"def {name}(work):\n    return work()\n", file, "exec"), names)
    found: Callable[[Callable[[], None]], None] = names[name]
    return found


step = as_algorithm("step")


@pytest.fixture
def mode() -> MadeUpMode:
    return MadeUpMode()


@pytest.fixture
def waits(mode: MadeUpMode) -> Iterator[HostWaits]:
    found = HostWaits(mode.calls)
    found.begin()
    yield found
    found.end()


def test_waits_of_steps_are_counted_with_their_line(waits: HostWaits) -> None:
    for _ in range(3):
        step(wait)
    step(lambda: wait())
    found = waits.summary(num_steps=4)
    assert (found["num"], found["num_steps"]) == (4, 4)
    (place,) = found["places"]
    assert place == f"{HERE}, line {wait.__code__.co_firstlineno + 1}" and found["places"][place] == 4


def test_a_wait_of_ours_has_our_line(waits: HostWaits) -> None:
    """Where no code of a user stands between the step and torch."""
    text = 'import warnings\ndef step():\n    warnings.warn("called a synchronizing CUDA operation", UserWarning, stacklevel=1)\n'
    names: dict[str, Any] = {}
    exec(compile(text, f"{ALGORITHMS}made_up.py", "exec"), names)
    names["step"]()
    assert waits.summary(1)["places"] == {f"{ALGORITHMS}made_up.py, line 3": 1}


def test_evaluations_and_other_threads_may_wait(recwarn: pytest.WarningsRecorder, waits: HostWaits) -> None:
    wait()
    as_algorithm("synchronise")(wait)
    as_algorithm("step", "/elsewhere/algorithms/made_up.py")(wait)
    thread = threading.Thread(target=step, args=(wait,))
    thread.start()
    thread.join()
    assert waits.summary(1)["num"] == 0 and place_in_step(None) == ""
    assert not recwarn.list, "nor is anybody told of them"


def test_other_warnings_are_shown_as_before(mode: MadeUpMode) -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        before = warnings.showwarning, list(warnings.filters)
        waits = HostWaits(mode.calls)
        waits.begin()
        assert mode.value == 1 and not shown, "torch's remark about the mode is no news"
        waits._show = lambda message, *_: shown_otherwise.append(str(message))
        shown_otherwise: list[str] = []
        warnings.warn("something else", UserWarning, stacklevel=1)
        step(wait)
        waits.end()
        waits.end()
        assert (warnings.showwarning, list(warnings.filters)) == before and mode.value == 0
        assert shown_otherwise == ["something else"] and waits.summary(1)["num"] == 1


def test_a_mode_that_the_user_has_set_stays() -> None:
    mode = MadeUpMode(value=2)
    waits = HostWaits(mode.calls)
    before = warnings.showwarning
    waits.begin()
    assert not waits.counts and warnings.showwarning is before
    waits.end()
    assert mode.value == 2


class Waiting(nn.Module):
    """A model that waits in every training batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(4, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        wait()
        found: torch.Tensor = self.inside(inputs)
        return found


def test_a_training_counts_its_steps_and_not_its_evaluations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mode = MadeUpMode()
    monkeypatch.setattr(open_observers, "Monitor", partial(Monitor, mode_of=lambda _: mode.calls))
    inputs, targets = torch.zeros(40, 4).numpy(), torch.zeros(40, dtype=torch.int64).numpy()
    task = un.Task(
        model=Waiting,
        data=lambda: un.Splits(train=(inputs, targets), validation=(inputs, targets)),
        loss="cross_entropy",
        global_batch=10,
        epochs=2,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "called a synchronizing")  # the first samples are tried before the run begins
        ended = un.train(task, out=tmp_path / "run", monitor=True, show=False, device="cpu")
    (found,) = ended.summary["monitor"]
    assert found["host_waits"]["num"] == found["host_waits"]["num_steps"] == 8
    assert [place.split(",")[0] for place in found["host_waits"]["places"]] == [HERE]
    assert mode.value == 0
