"""A page from a template of any report: it needs nothing else, escapes what it is given, and refuses what it is not given."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest

from unisono.observe.pages.frame import page

TEMPLATE = """{% extends "page.html" %}
{% import "parts.html" as parts %}
{% block title %}{{ name }}{% endblock %}
{% block style %}.own { color: red; }{% endblock %}
{% block body %}
{{ parts.tiles([("3", name)]) }}
{{ parts.legend([("given back", name)]) }}
{{ parts.table([("a", false), ("b", true)], [(name, 2)], ("all", 2)) }}
{{ parts.command(name) }}
{{ parts.wide(drawing) }}
{{ parts.breakable("model.wide_net") }}
{% endblock %}
"""
BAD = "<script>'\"&\x1b"


@pytest.fixture
def template(tmp_path: Path) -> Path:
    path = tmp_path / "own.html"
    path.write_text(TEMPLATE)
    return path


def test_a_template_is_framed_and_its_texts_are_escaped(template: Path) -> None:
    text = page(template, name=BAD, drawing="<svg></svg>")
    safe = "&lt;script&gt;&#x27;&quot;&amp;\N{REPLACEMENT CHARACTER}"
    assert text.startswith("<!DOCTYPE html>") and text.endswith("</html>") and f"<title>{safe}</title>" in text
    assert f"<li><b>3</b><small>{safe}</small></li>" in text
    assert f'<li><span class="key given-back"></span>{safe}</li>' in text
    assert f'<thead><tr><th>a</th><th class="n">b</th></tr></thead>\n<tbody>\n<tr><td>{safe}</td><td class="n">2</td></tr>' in text
    assert '<tfoot><tr><td>all</td><td class="n">2</td></tr></tfoot>' in text
    assert f'<pre tabindex="0">{safe}</pre>' in text
    assert '<div class="wide"><svg></svg></div>' in text and "model.<wbr>wide_<wbr>net" in text
    assert BAD not in text and ".own { color: red; }" in text


def test_it_fetches_nothing(template: Path) -> None:
    text = page(template, name="x", drawing="")
    assert "default-src 'none'" in text and "prefers-color-scheme: dark" in text and '"use strict"' in text
    assert not any(word in text for word in ("http:", "https:", "src=", "href=", "@import"))


def test_a_value_that_is_missing_is_an_error(template: Path) -> None:
    with pytest.raises(jinja2.UndefinedError, match="'drawing' is undefined"):
        page(template, name="x")
