"""The site file: which one counts, what it says, and mistakes in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from unisono.errors import UsageError
from unisono.slurm_jobs import site_file


def written(folder: Path, text: str, name: str = "site.toml") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_all_that_it_can_say(tmp_path: Path) -> None:
    text = """
        account = "physics"
        partition = "gpu"
        modules = ["python/3.11", "cuda"]
        preamble = "source ~/venv/bin/activate"
        container = " apptainer exec image.sif "
        sbatch = { gpus-per-task = 1, constraint = "a100", exclusive = true, requeue = false }
    """
    found = site_file.read(written(tmp_path, text))
    assert found.modules == ("python/3.11", "cuda")
    assert found.preamble == "source ~/venv/bin/activate"
    assert found.container == "apptainer exec image.sif"
    assert found.sbatch == {"account": "physics", "partition": "gpu", "gpus-per-task": "1", "constraint": "a100", "exclusive": None}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("acount = 'physics'", "unknown key 'acount' in the site file .*; did you mean 'account'"),
        ("account = 7", "account in .* must be a text; received 7"),
        ("modules = 'cuda'", "modules in .* must be a list of texts; received 'cuda'"),
        ("modules = ['cuda', 12]", "modules in .* must be a list of texts; one of them is 12"),
        ("sbatch = 'gpu'", "sbatch in .* must be a table"),
        ("sbatch = { gres = [1] }", r"sbatch.gres in .* must be a text, a whole number or true; received \[1\]"),
        ("sbatch = { --gres = 1 }", "without leading dashes; received '--gres'"),
        ("partition = 'a'\nsbatch = { partition = 'b' }", "sets partition twice"),
        ("container = '''\na\nb'''", "container in .* must be one line"),
        ("account = ", "cannot be read"),
    ],
)
def test_mistakes(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        site_file.read(written(tmp_path, text))


def test_which_one_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    env = {"HOME": str(tmp_path / "home")}
    assert site_file.find(env) is None
    of_user = written(tmp_path / "home", "", ".config/unisono/site.toml")
    assert site_file.find(env) == of_user
    written(tmp_path, "", "unisono-site.toml")
    assert site_file.find(env) == Path("unisono-site.toml")
    named = written(tmp_path, "", "named.toml")
    assert site_file.find({**env, "UNISONO_SITE": str(named)}) == named
    given = written(tmp_path, "", "given.toml")
    assert site_file.find({**env, "UNISONO_SITE": str(named)}, str(given)) == given


@pytest.mark.parametrize(("given", "place"), [("nowhere.toml", "--site"), (None, "UNISONO_SITE, environment")])
def test_one_that_is_not_there_is_refused(given: str | None, place: str) -> None:
    with pytest.raises(UsageError, match=f"there is no site file nowhere.toml .{place}.; check the path"):
        site_file.find({"UNISONO_SITE": "nowhere.toml"}, given)
