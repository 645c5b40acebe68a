"""The inputs to which a model is applied: a part of the task's own data, or files that are prepared in the same way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os.path import commonpath
from pathlib import Path
from typing import Any

from unisono.data.checks import ids_in_data_set, origin
from unisono.data.source import Mapped, Source, Subset
from unisono.data.sources.images import SUFFIXES, Images
from unisono.data.sources.open_source import as_source
from unisono.data.splits import Splits
from unisono.errors import UsageError

LIKE_THE_TASK = (("size", "size"), ("mode", "mode"))
"""Options of pictures that are taken from the task's own where they are not given."""


@dataclass(frozen=True)
class Inputs:
    """Samples to apply a model to."""

    source: Source
    what: str
    """The name of the inputs in messages."""
    description: Mapping[str, Any]
    """A description that identifies the samples: other samples have another one."""


def split_inputs(splits: Splits, name: str) -> Inputs:
    """Local: the samples of a part of the task's own data."""
    parts = splits.parts()
    if name not in parts:
        raise UsageError(
            f"the task has no {name} data (--split); it has {', '.join(parts)}. Give a file or folder of inputs instead"
        )
    return Inputs(parts[name], f"the {name} data", {"split": name, "sha256": splits.sha256()})


def file_inputs(paths: Sequence[str], options: Mapping[str, Any], like: Splits | None) -> Inputs:
    """Local: opens files or a folder by their suffix, with `options`, and prepares them as the task does its own data (`like`)."""
    opened = _open_source(paths, options, like)
    if not len(opened):
        raise UsageError(f"{' '.join(paths)} holds no samples; give at least one")
    changes = () if like is None else _input_changes(next(reversed(like.parts().values())))
    source = opened
    for change in changes:
        source = source.map_inputs(change)
    facts = [(str(Path(path).resolve()), Path(path).stat().st_mtime_ns) for path in paths if Path(path).exists()]
    description = {"files": facts, **opened.describe(), "changes": [_name(change) for change in changes]}
    return Inputs(source, " ".join(paths), description)


def sample_names(source: Source) -> list[str] | None:
    """Local: the names of samples that have them: a picture has that of its file, without suffix; where two files would have one
    name, with its folders, and at last with the suffix; else None."""
    whole, indices = origin(source)
    if not isinstance(whole, Images):
        return None
    chosen = whole.paths if indices is None else [whole.paths[int(index)] for index in indices]
    number = len(set(chosen))
    if len(set(names := [path.stem for path in chosen])) == number:
        return names
    above = Path(commonpath([path.parent for path in chosen]))
    within = [path.relative_to(above) for path in chosen]
    names = [path.with_suffix("").as_posix() for path in within]
    return names if len(set(names)) == number else [path.as_posix() for path in within]


def sample_numbers(source: Source) -> Sequence[int] | None:
    """Local: the numbers of samples in their source, or in the data set of a Subset of torch; None for all, in order."""
    found = ids_in_data_set(source)
    numbers = origin(source)[1] if found is None else found[1]
    return None if numbers is None else [int(number) for number in numbers]


def class_names(splits: Splits) -> tuple[str, ...]:
    """Local: the names of the classes by their numbers; empty where classes have no names."""
    return tuple(getattr(origin(splits.train)[0], "classes", ()))


def _open_source(paths: Sequence[str], options: Mapping[str, Any], like: Splits | None) -> Source:
    """Opens the paths by their kind, pictures with the size and so on of the task's; refuses options that do not suit the kind."""
    where = Path(paths[0]).expanduser()
    given = dict(options)
    flat = _pictures(where) if len(paths) == 1 else []
    pictures = bool(flat) or (where.is_dir() and not where.suffix) or where.suffix.lower() == ".csv"
    if like is not None and pictures and isinstance(own := origin(like.train)[0], Images):
        given = {option: getattr(own, name) for option, name in LIKE_THE_TASK} | given
    try:
        if flat:
            return Images(flat, **given)
        if where.is_dir() and (where / "config.json").exists():
            raise UsageError(f"{where} is a run directory; name all runs before the inputs")
        return as_source(paths[0] if len(paths) == 1 else list(paths), **given)
    except TypeError as error:
        raise UsageError(
            f"{where} cannot be opened with these options ({error}); give those of its format, e.g. --open inputs=KEY, or "
            "--open file=COLUMN"
        ) from error


def _pictures(folder: Path) -> list[Path]:
    """The pictures of a folder without sub-folders."""
    if not folder.is_dir() or any(entry.is_dir() for entry in folder.iterdir()):
        return []
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)


def _input_changes(part: Source) -> list[Callable[[Any], Any]]:
    """The functions that the task applies to its inputs after reading, in order."""
    found: list[Callable[[Any], Any]] = []
    while isinstance(part, (Subset, Mapped)):
        if isinstance(part, Mapped):
            if not part.inputs_only:
                raise UsageError(
                    f"the data of the task change whole batches ({_name(part.change)}), and these inputs have no targets; use "
                    "map_inputs for changes of inputs alone, or give inputs that are ready for the model, with --as-is"
                )
            found.append(part.change)
        part = part.source
    return found[::-1]


def _name(change: Callable[[Any], Any]) -> str:
    """Returns the name of a function, or of the type of a callable object."""
    return getattr(change, "__qualname__", type(change).__name__)
