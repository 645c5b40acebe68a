"""Lines that are broken where there is nothing, and bars in order; texts are shortened and escaped."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from unisono.observe.pages.drawings import bars, path_through
from unisono.observe.pages.svg import label, shorten


def test_a_line_is_broken_where_there_is_no_place() -> None:
    assert path_through([0, 10, 20, 30, 40], [1.0, 2.0, None, 3.0, None]) == "M0.0 1.0L10.0 2.0M24.0 3.0h12"
    assert path_through([0, 10], [None, None]) == ""


def test_bars_are_in_order_and_the_unknown_come_last() -> None:
    picture = bars({"small": 0.1, "unknown": None, "a <large> one": 0.756}, "Share", "nobody knows")
    root = ET.fromstring(picture)
    assert root.get("aria-label") == "Share: a <large> one 76%, small 10%"
    assert re.findall(r">([^<>]+)</text>", picture) == ["a &lt;large&gt; one", "76%", "small", "10%", "unknown", "nobody knows"]
    assert [rect.get("width") for rect in root.iter("rect")] == ["310", "41"]


def test_long_texts_keep_their_end_and_are_whole_on_hover() -> None:
    assert shorten("model.encoder.width", 8) == "…r.width" and shorten("short", 8) == "short"
    assert label(1, 2, "model.encoder.width", 8) == '<text x="1" y="2"><title>model.encoder.width</title>…r.width</text>'
