"""What a trial prints is in its own file, and a trial that prints nothing leaves nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from unisono.tuning.workers.trial_output import TrialOutput


@pytest.fixture
def output() -> Iterator[TrialOutput]:
    found = TrialOutput()
    yield found
    found.remove_empty()


def file_of(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}" / "fold-0.txt"


@pytest.fixture(autouse=True)
def real_streams(capfd: pytest.CaptureFixture[str]) -> pytest.CaptureFixture[str]:
    """Of the process, as a trial's libraries use them."""
    return capfd


def test_all_that_is_said_is_kept(tmp_path: Path, output: TrialOutput, capfd: pytest.CaptureFixture[str]) -> None:
    with capfd.disabled(), output.redirected_to(file_of(tmp_path, 0), True, True):
        os.write(1, b"a library\n")
        subprocess.run([sys.executable, "-c", "import sys; print('a program'); print('its trouble', file=sys.stderr)"], check=True)
    assert sorted(file_of(tmp_path, 0).read_text().splitlines()) == ["a library", "a program", "its trouble"]


def test_what_was_said_before_stays(tmp_path: Path, output: TrialOutput) -> None:
    for text in (b"first\n", b"second\n"):
        with output.redirected_to(file_of(tmp_path, 0), True, True):
            os.write(1, text)
    assert file_of(tmp_path, 0).read_text() == "first\nsecond\n"


def test_trials_without_output_leave_no_files(tmp_path: Path, output: TrialOutput) -> None:
    for number in range(3):
        with output.redirected_to(file_of(tmp_path, number), True, True):
            assert [one.name for one in tmp_path.iterdir()] == [f"{number:06d}"]
    output.remove_empty()
    assert not list(tmp_path.iterdir())


def test_a_trial_with_output_after_silent_ones_has_its_own_file(tmp_path: Path, output: TrialOutput) -> None:
    for number, text in enumerate((b"", b"now\n", b"", b"again\n")):
        with output.redirected_to(file_of(tmp_path, number), True, True):
            os.write(2, text)
    output.remove_empty()
    found = {one.parent.name: one.read_text() for one in tmp_path.glob("*/*")}
    assert found == {"000001": "now\n", "000003": "again\n"}


def test_what_an_earlier_attempt_said_is_not_lost(tmp_path: Path, output: TrialOutput) -> None:
    file_of(tmp_path, 1).parent.mkdir()
    file_of(tmp_path, 1).write_text("before\n")
    for number in range(2):
        with output.redirected_to(file_of(tmp_path, number), True, True):
            pass
    output.remove_empty()
    assert file_of(tmp_path, 1).read_text() == "before\n" and not file_of(tmp_path, 0).exists()


def test_the_files_of_a_trial_stay_where_they_are(tmp_path: Path, output: TrialOutput) -> None:
    with output.redirected_to(file_of(tmp_path, 0), True, False):
        (file_of(tmp_path, 0).parent / "model").write_text("weights")
    with output.redirected_to(file_of(tmp_path, 1), True, False):
        assert (file_of(tmp_path, 0).parent / "model").exists() and not file_of(tmp_path, 0).exists()


def test_what_others_write_too_is_not_removed(tmp_path: Path, output: TrialOutput) -> None:
    with output.redirected_to(file_of(tmp_path, 0), False, False):
        pass
    assert file_of(tmp_path, 0).exists()


def test_a_folder_that_cannot_be_made_costs_only_the_output(tmp_path: Path, output: TrialOutput) -> None:
    (tmp_path / "000000").write_text("in the way")
    with output.redirected_to(file_of(tmp_path, 0), True, True):
        os.write(1, b"lost\n")
    assert (tmp_path / "000000").read_text() == "in the way"


def test_streams_are_as_before(tmp_path: Path, output: TrialOutput, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError), output.redirected_to(file_of(tmp_path, 0), True, True):
        raise ValueError
    print("after", flush=True)
    assert capfd.readouterr().out == "after\n"
