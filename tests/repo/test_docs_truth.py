"""README, docs/ and the docstrings of examples name only what exists. What each reader finds, it also finds in a made-up page."""

from __future__ import annotations

import re

import pytest

from tests.repo.docs_readers import FILE, OPTIONS_OF_OTHERS, READERS, calls, wrong_commands, wrong_tables, wrong_verbs
from tests.system.documented import ROOT, Page, code, commands, pages
from unisono.cli import VERBS


@pytest.mark.parametrize("kind", READERS)
def test_what_the_documentation_names_exists(kind: str) -> None:
    found = [f"{page.name}:{wrong}" for page in pages() for wrong in READERS[kind](page)]
    assert not found, "\n".join(found)


def test_much_is_read() -> None:
    """Else a reader that finds nothing would always be content."""
    read = pages()
    verbs = {command.verb for page in read for command in commands(page)}
    assert verbs == set(VERBS)
    assert sum(len(list(commands(page))) for page in read) > 150
    assert sum(len(FILE.findall(page.text)) for page in read) > 60
    assert sum(len(list(calls(page))) for page in read) > 40
    assert sum(1 for page in read if not page.is_markdown) > 10


def test_foreign_options_are_needed() -> None:
    used = {word for page in pages() for piece in code(page) for word in re.findall(r"--[a-z][\w-]*", piece.text)}
    assert set(OPTIONS_OF_OTHERS) <= used


# ---- a made-up mistake is found --------------------------------------------------------------------------------------

MADE_UP = (
    ("verbs", "Run `unisono trian task.py`."),
    ("verbs", "    srun -n 2 unisono lern task.py"),
    ("commands", "    unisono train task.py --epoch 3"),
    ("commands", "    $ unisono evaluate"),
    ("commands", "    unisono run -n 2 -m unisono tune task.py --fold 3"),
    ("commands", "```bash\nmpirun -n 2 unisono train task.py --lerning-rate 1\n```"),
    ("commands", "    unisono submit task.py --tim 1h -- --gres=gpu:4"),
    ("options", "The option `--no-such-option` helps."),
    ("options", "| `unisono tune task.py --trails 3` | x |"),
    ("options", "Write `unisono run --nods K`."),
    ("values", "    unisono train task.py --algorithm gme"),
    ("values", "    unisono train task.py --algorithm gem --set algorithm.period=3"),
    ("values", "Give `--set algorithm.perod=3`."),
    ("values", "Give `--set simulate.compute=3`."),
    ("values", "Give `--set epoch=3`."),
    ("values", "Give `--engine glo`."),
    ("values", "Give `--allreduce=ringg`."),
    ("files", "See tests/repo/test_no_such.py."),
    ("files", "See `comm/no_such.py`."),
    ("files", "    unisono train examples/digit.py"),
    ("links", "[x](no_such.md)"),
    ("links", "[x](docs/concepts.md#no-such-heading)"),
    ("links", "# A\n\n[x](#b)"),
    ("names", "Call `un.trian(task)`."),
    ("names", "    strategy = un.keras.Strategie()"),
    ("names", "    task = un.Task(augment=un.augment.Flop())"),
    ("names", "```python\ntask = un.Task(augment=un.augment.Flip(chance=0.5))\n```"),
    ("names", "Call `un.train(task, epoch=3)`."),
    ("names", "```python\ntask = un.Task(modell=f)\n```"),
    ("names", "    from unisono.cluster.resolve import no_such"),
    ("names", "    python -m unisono.testing.contracts"),
    ("codes", "It ends with exit code 76."),
    ("codes", "Exit codes: 0 done; 1 failed; 3 a mistake"),
    ("codes", "| a | exit code |\n|---|---|\n| b | 99 |"),
    ("codes", "| 74 | stopped, checkpoint saved |"),
    ("variables", "Set UNISONO_ENGIN=shm."),
    ("targets and extras", "Run `make tests`."),
    ("targets and extras", "    pip install 'unisono[tuning]'"),
)


@pytest.mark.parametrize(("kind", "text"), MADE_UP)
def test_a_made_up_mistake_is_found(kind: str, text: str) -> None:
    assert list(READERS[kind](Page(ROOT / "MADE_UP.md", text)))


@pytest.mark.parametrize(
    "row",
    [
        "| `period` | 9 | x |\n| `momentum` | `keep` | x |",
        "| `period` | 8 | x |",
        "| `period` | 8 | x |\n| `momentum` | `lose` | x |",
    ],
)
def test_a_wrong_table_of_options_is_found(row: str) -> None:
    text = f"| option (`--set algorithm.NAME=VALUE`) | default | |\n|---|---|---|\n{row}\n"
    assert list(wrong_tables(Page(ROOT / "docs" / "algorithms" / "local_sgd.md", text)))


@pytest.mark.parametrize(
    "text",
    [
        "| `model`, `modell` | x |",
        "| `loss` | `cross_entropie` |",
        "| `metrics` | `accuracy`, `acuracy`; or functions |",
    ],
)
def test_a_wrong_table_of_a_task_is_found(text: str) -> None:
    assert list(wrong_tables(Page(ROOT / "docs" / "how-to" / "train.md", f"| field | meaning |\n|---|---|\n{text}\n")))


def test_a_docstring_is_read() -> None:
    text = "Digits.\n\nunisono train examples/digits.py -n 2 --epoch 3\n    KERAS_BACKEND=jax unisono trian x.py   # or torch\n"
    page = Page(ROOT / "examples" / "x.py", text, is_markdown=False)
    assert len(list(wrong_commands(page))) == len(list(wrong_verbs(page))) == 1


def test_what_is_right_is_not_reported() -> None:
    text = """# A page

    $ unisono train examples/digits.py -n 2 --set model.width=3 \\
        --algorithm local_sgd --set algorithm.period=4    # eight --made-up steps
    digits: 2 workers
    unisono    no     UNISONO_RANK is not set
    srun -N 2 -n 8 --made-up unisono doctor -n 8 --json > doctor.json
    unisono run -n 2 program.py --its --arguments
    unisono submit task.py --time 1h -- --gres=gpu:4

`--folds K`, `--kill-on-bad-exit=1`, `srun --no-kill`, `un.train(task, workers=2, epochs=3)`, `unisono tune -n N`,
[link](docs/concepts.md#words), `unisono.testing.contract`, exit code 75, UNISONO_ENGINE, `make test`,
`cluster/launchers/NAME.py`, `pip install 'unisono[tune]'`.
"""
    page = Page(ROOT / "RIGHT.md", text)
    assert [wrong for reader in READERS.values() for wrong in reader(page)] == []
    assert [one.verb for one in commands(page)] == ["train", "doctor", "run", "submit", "tune"]
    assert [one.line for one in code(page)][:1] == [4]
