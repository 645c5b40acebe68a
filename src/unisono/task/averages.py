"""How the metrics of a run average whose names do not say it: `f1` and the like, which do not end in macro, micro, weighted or
binary.

The outputs of the model decide: one output is measured by the positive class, several by the mean over their classes. A run records
what it was, keeps it when it is resumed or evaluated, and is compared only with runs that average alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

Averages = Mapping[str, str]
"""Name of a metric -> its average; for a name that is not in it the outputs decide."""

MACRO, MICRO, WEIGHTED, BINARY = AVERAGES = ("macro", "micro", "weighted", "binary")
"""The mean over classes, over decisions, over true decisions; the value of the positive class of two."""
UNNAMED = ("precision", "recall", "f1", "dice", "iou")
OF_OUTPUTS: Averages = MappingProxyType({})
MEANINGS: Mapping[str, str] = MappingProxyType({MACRO: "the mean over the classes", BINARY: "the positive class"})
KEY = "averages"


def averages_record(metrics: Iterable[object], averages: Averages) -> dict[str, Averages]:
    """Pure: the entry in the record of a run with these metrics; none where all are means over the classes, as in old versions."""
    is_as_before = all(averages.get(str(name)) == MACRO for name in metrics if name in UNNAMED)
    return {} if is_as_before else {KEY: dict(averages)}


def recorded_averages(record: Mapping[str, Any]) -> Averages:
    """Pure: the averages in the record of a run (config.json) or a study (study.json). One without an entry took means over the
    classes."""
    if KEY in record:
        found: Averages = record[KEY]
        return found
    names = record.get("settings", {}).get("metrics", UNNAMED)
    return {name: MACRO for name in names if name in UNNAMED}
