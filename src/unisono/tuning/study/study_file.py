"""The description of a study (study.json), written by its first job; all later jobs must ask for the same, or trials could not be
compared."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from unisono.data.data_differences import describe_other_data
from unisono.errors import UsageError
from unisono.files.atomic import atomic_replacement, explain_os_errors, fsync_path
from unisono.task.task import FINAL
from unisono.training.run_folder.run_directory import as_json, differences

ABOUT = "study.json"
SAME_STUDY = ("task", "sources", "space", "fixed", "objectives", "folds", "fold_by", "repeats", "seed", "storage")
"""What must not change in a study."""
OURS = (ABOUT, "journal", "claims", "trials", "objective-")
"""What a study may have before it is written down what it is."""
BY_EPOCHS = ("asha", "median")
"""Ways to prune that compare trials epoch by epoch, all waves of their trainings counted."""
SHOWN, HASH_DIGITS = 4, 12
CAPTURED = "captured"
"""What differences begin with that are in what an objective has captured."""


def make_study(folder: Path, about: Mapping[str, Any], accept_changes: bool = False) -> dict[str, Any]:
    """Writes study.json unless it is there, and returns it; refuses a folder that holds another study. With `accept_changes` the
    files of the task may have changed, which is recorded. Local, blocking."""
    path = folder / ABOUT
    with explain_os_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        found = sorted(one.name for one in folder.iterdir() if not one.name.startswith((".", *OURS)))
        if found:
            raise UsageError(f"{folder} holds other files ({', '.join(found[:3])}) and no study; give another --out")
        draft = folder / f".{ABOUT}.{uuid4().hex}"
        with explain_os_errors(path):
            try:
                draft.write_text(json.dumps({"id": _new_id(folder), **as_json(about)}, indent=2) + "\n")
                fsync_path(draft)
                os.link(draft, path)  # of jobs that start at the same time one makes it
            except FileExistsError:
                pass
            finally:
                draft.unlink(missing_ok=True)
    there, here = read_study(folder), as_json(about)
    is_known = (here.get("sources") or {}) in known_sources(there)
    names = [name for name in SAME_STUDY if name != "sources" or not is_known]
    meant = {**there.get("defaults", here.get("older_defaults", {})), **there.get("fixed", {})}
    then, asked = {**there, "fixed": meant}, {**here, "fixed": {**here.get("defaults", {}), **here.get("fixed", {})}}
    found = [one for name in names for one in differences(_shown(name, then), _shown(name, asked), name)]
    if there.get("captured") is not None and here.get("captured") not in known_captured(there):  # old studies have none
        found += differences(there["captured"], here.get("captured") or {}, CAPTURED)
    if there.get("sources") == here.get("sources"):  # other files may give other data, which are accepted with them
        before, now = there.get("samples") or here.get("samples") or {}, here.get("samples") or {}  # old studies have none
        found += [f"samples: {other}"] if (other := describe_other_data(before, now)) else []
    if found and (not accept_changes or not _are_of_sources(found)):
        others = {name: meant[name] for name, value in here.get("defaults", {}).items() if meant.get(name, value) != value}
        raise UsageError(_refusal(folder, there, here, found, others))
    _check_steps(folder, there, here)
    if found:
        there["samples"] = here.get("samples")
        accepted = {name: here[name] for name in ("sources", "captured") if name in here}
        there["accepted"] = [*there.get("accepted", ()), {**accepted, "changes": found, "at_s": time.time()}]
        with atomic_replacement(path) as draft:
            draft.write_text(json.dumps(there, indent=2) + "\n")
    return there


def read_study(folder: Path) -> dict[str, Any]:
    """Returns the content of study.json. Local, blocking."""
    path = folder / ABOUT
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise UsageError(f"{folder} holds no study ({ABOUT} is missing); check the path") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}; restore it, or give another study") from error
    return found


def weights_of(folder: Path, about: Mapping[str, Any]) -> str:
    """Returns the weights by whose results the trials of a study are compared: those with which it was made (final in earlier
    versions), or for a new study those that count in the task. Local, blocking."""
    made = read_study(folder) if (folder / ABOUT).exists() else about
    return str(made.get("weights", FINAL))


def space_of(folder: Path, about: Mapping[str, Any]) -> Any:
    """Returns the space of a study as it was made: earlier versions took fewer ranges for ones of real numbers, and the trials of
    one study must have the same space. Local, blocking."""
    if not (folder / ABOUT).exists():
        return about["space"]
    made, here = read_study(folder), as_json(about["space"])
    is_same = (about.get("sources") or {}) in known_sources(made) and _without_whole(made["space"]) == _without_whole(here)
    return made["space"] if is_same else here


def _without_whole(space: Any) -> Any:
    """Returns a space without the record which of its numbers are whole."""
    if space is None:
        return None
    return {**space, "dimensions": [{**one, "whole": None} for one in space["dimensions"]]}


def known_sources(about: Mapping[str, Any]) -> list[Mapping[str, str | None]]:
    """Returns the hashes of the files by which the study was made, and of those that were accepted later. Pure."""
    return [about.get("sources") or {}, *(one["sources"] for one in about.get("accepted", ()))]


def known_captured(about: Mapping[str, Any]) -> list[Mapping[str, str] | None]:
    """Returns what the objective of the study had captured, and what it had when that was accepted later. Pure."""
    return [about.get("captured"), *(one.get("captured") for one in about.get("accepted", ()))]


def _new_id(folder: Path) -> str:
    """A name by which a database finds the study, also when the folder is moved; studies in folders of one name differ."""
    return f"{folder.resolve().name}-{uuid4().hex[:12]}"


def _are_of_sources(found: Sequence[str]) -> bool:
    """Whether all differences found concern source files and the data that they make."""
    return all(one.startswith(("sources", "samples", CAPTURED)) for one in found)


def _refusal(
    folder: Path, there: Mapping[str, Any], here: Mapping[str, Any], found: Sequence[str], others: Mapping[str, Any]
) -> str:
    """Returns the message that a folder holds another study, with the first differences and the remedy. `others` are settings whose
    default was another when it was made."""
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    differ = f"{'; '.join(found[:SHOWN])}{more}"
    if _are_of_sources(found) and there.get("space") is None:
        return (
            f"the objective has changed since the study {folder} was made: {differ}. If that changes no result, add "
            "accept_changes=True to resume; else give another out"
        )
    if _are_of_sources(found):
        what = "files" if any(one.startswith("sources") for one in found) else "data"
        return (
            f"{what} of the task have changed since the study {folder} was made: {differ}. If that changes no result, add "
            "--accept-changes to resume; else give another --out"
        )
    what = "another task" if there.get("task") != here.get("task") else "a study with other settings"
    if any(one.startswith("space") for one in found):
        what = "a study with another space"
    given = " ".join(f"--set {name}={value}" for name, value in others.items())
    remedy = f"to resume it add {given}; else give another --out" if given else "give another --out"
    return f"{folder} holds {what}: {differ}. Trials of both cannot be compared; {remedy}"


def _check_steps(folder: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Refuses a job whose reports have other steps: trials are pruned by what others had reached at the same step."""
    then, now = there.get("prune", "none"), here.get("prune", "none")
    if "none" not in (then, now) and (then in BY_EPOCHS) != (now in BY_EPOCHS):
        raise UsageError(
            f"the study {folder} prunes with {then}, and {now} (--prune) compares something else; use --prune {then}, --prune "
            "none, or another --out"
        )
    folds, ours = there.get("parallel_folds", 1), here.get("parallel_folds", 1)
    if now in BY_EPOCHS and folds != ours:
        raise UsageError(
            f"the study {folder} trains {folds} folds of a trial at a time and this job {ours} (--parallel-folds), so --prune "
            f"{now} could not compare their trials; use --parallel-folds {folds}, or --prune none"
        )


def _shown(name: str, about: Mapping[str, Any]) -> Any:
    """A part of the description in a form whose differences are short: a space by its dimensions, a file by a few digits."""
    value = about.get(name)
    if name == "sources":
        return {file: sha256 and sha256[:HASH_DIGITS] for file, sha256 in (value or {}).items()}
    if not isinstance(value, Mapping) or "dimensions" not in value:
        return value
    return {
        **{one["name"]: one for one in value["dimensions"]},
        **{key: part for key, part in value.items() if key != "dimensions"},
    }
