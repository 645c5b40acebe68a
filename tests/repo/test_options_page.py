"""docs/reference/options.md says what the options say of themselves."""

from __future__ import annotations

from tests.repo.options_page import PAGE, page


def test_the_page_is_that_of_the_code() -> None:
    assert PAGE.read_text() == page(), "write it again: python -m tests.repo.options_page"


def test_the_page_has_each_kind_of_option() -> None:
    rows = page().splitlines()
    for begin in ("| `--log-every K` | `log_every` | a whole number of at least 1 |", "| `--best METRIC` | `best` |"):
        assert any(row.startswith(begin) for row in rows), begin
    for name in ("algorithm.outer_lr", "simulate.jitter", "clip_norm", "--engine E", "--partition X", "--split SPLIT"):
        assert any(row.startswith(f"| `{name}`") for row in rows), name
