"""Which runs were measured on the same samples, from what they have recorded of their data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unisono.data.data_differences import PART_NAMES, differing_values
from unisono.predict.finished_run import FinishedRun

TRAIN = "train"
PARTS = "parts_sha256"
"""Of the split in a summary: part of the data -> hash of its samples."""


@dataclass(frozen=True)
class SameSamples:
    """Runs whose samples of one part of the data are the same, as far as they have recorded it."""

    sha256: str
    """The hash of the samples: of their names, sizes, numbers and labels."""
    values: str
    """How the values differ from those of another group with this hash, in words; empty for the first."""
    runs: list[FinishedRun] = field(default_factory=list)

    def __str__(self) -> str:
        names = ", ".join(str(run.path) for run in self.runs)
        return f"split {self.sha256[:12]}{f' with other values of {self.values}' if self.values else ''}: {names}"


def group_by_samples(runs: Sequence[FinishedRun], part: str) -> list[SameSamples]:
    """Local: groups runs by the samples in a part of their data. The hash is that of all their data, where one of them did not
    record that of the part: a run of an earlier version, or of a fold."""
    splits = [run.summary["split"] for run in runs]
    are_known = all(part in split.get(PARTS, ()) for split in splits)
    groups: list[SameSamples] = []
    for run, split in zip(runs, splits, strict=True):
        sha256 = split[PARTS][part] if are_known else split["sha256"]
        alike = [group for group in groups if group.sha256 == sha256]
        values = [other_samples(group.runs[0].samples(part), run.samples(part)) for group in alike]
        if "" in values:
            alike[values.index("")].runs.append(run)
        else:
            groups.append(SameSamples(sha256, values[0] if values else "", [run]))
    return groups


def other_samples(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> str:
    """Pure: names the arrays by which two records are seen to be of other samples; empty where they may be of the same. Inputs that
    the task itself has computed may only be prepared in another way, see `other_preparation`."""
    return "" if one is None or other is None else " and ".join(_differing(one, other, surely=True))


def other_preparation(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> bool:
    """Pure: whether the inputs of two records differ, but may be the same samples, prepared in another way by the task itself."""
    return one is not None and other is not None and bool(_differing(one, other, surely=False))


def describe_other_data(runs: Sequence[FinishedRun], measured: str) -> list[str]:
    """Local: sentences on how the data of runs differ, or may differ, that were measured on the same samples of one part."""
    names = [str(run.path) for run in runs if run.samples(measured) is None]
    notes = []
    if names and len(runs) > 1:
        notes.append(
            f"{_listed(names)} recorded no values of the {PART_NAMES[measured]} data, as an earlier version trained "
            f"{'it' if len(names) == 1 else 'them'}: that the samples are the same is known from their number, sizes, division and "
            "labels alone"
        )
    if odd := [str(run.path) for run in runs[1:] if other_preparation(runs[0].samples(measured), run.samples(measured))]:
        notes.append(
            f"the inputs of the {PART_NAMES[measured]} data have other values in {_listed(odd)} than in {runs[0].path}. The task "
            "computes them itself, so whether they are other samples or are prepared in another way cannot be told; with the "
            "preparation in map_inputs the samples are compared as they are before it"
        )
    return [*notes, *(_unlike(runs, part) for part in (TRAIN, "validation") if part != measured and _differ(runs, part))]


def _differing(one: Mapping[str, Any], other: Mapping[str, Any], surely: bool) -> list[str]:
    """Returns the arrays whose values differ, those that show other samples or those that do not surely show it."""
    found = differing_values(one["source"], other["source"])
    is_stored = one["is_stored"] and other["is_stored"]
    return [words for words in found if (is_stored or not words.startswith("the inputs")) == surely]


def _differ(runs: Sequence[FinishedRun], part: str) -> bool:
    """Whether runs that recorded the hash of each part differ in one. Those of earlier versions have the same data throughout."""
    known = [run.summary["split"].get(PARTS) for run in runs]
    return all(known) and len(_by_hash(runs, part)) > 1


def _by_hash(runs: Sequence[FinishedRun], part: str) -> list[SameSamples]:
    """Groups runs by the samples of a part, which some may not have."""
    having = [run for run in runs if part in run.summary["split"][PARTS]]
    lacking = [run for run in runs if run not in having]
    return [*group_by_samples(having, part), *([SameSamples("none", "", lacking)] if lacking else [])]


def _unlike(runs: Sequence[FinishedRun], part: str) -> str:
    """Returns a sentence on a part of the data in which runs differ."""
    listed = "; ".join(map(str, _by_hash(runs, part)))
    return f"the {PART_NAMES[part]} data of these runs differ, which may be the reason for other results: {listed}"


def _listed(names: Sequence[str]) -> str:
    """Returns names as text, of many the first."""
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} others"
