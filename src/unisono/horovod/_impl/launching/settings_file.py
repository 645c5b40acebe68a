"""Reads the file of `horovodrun --config-file`: YAML, with sections of `key: value`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from unisono.errors import UsageError
from unisono.horovod._impl.launching.flags import FLAGS

EMPTY = ("", "null", "~", "none")
CONTROLLER = "controller"
KNOWN: Sequence[str] = (CONTROLLER, *(flag.setting.removeprefix("!") for flag in FLAGS if flag.setting is not None))


def read_settings(path: Path) -> dict[str, str]:
    """Returns `section.key` -> value as text. Raises `UsageError` with the line that is not understood. Local."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read (--config-file): {error}; check the path") from error
    return parse_settings(text, str(path))


def parse_settings(text: str, name: str) -> dict[str, str]:
    """Returns the settings of a text. Values stay texts, since they are checked like those of flags. Keys that Horovod does not
    have are refused, as they would have no effect. Pure."""
    yaml = _import_yaml()
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        # What the scanner looks for in vain, such as the other quote, is missed at the end of the file only.
        begins_at = error.context_mark if isinstance(error, yaml.scanner.ScannerError) else None
        raise _not_understood(name, begins_at or error.problem_mark, error.problem) from error
    except yaml.YAMLError as error:
        raise UsageError(f"{name} is not YAML (--config-file): {error}; correct it") from error
    found: dict[str, str] = {}
    for section, node in _pairs(root, name, "a section was expected") if root is not None else ():
        if not isinstance(node, yaml.ScalarNode):
            for key, value in _pairs(node, name, "lines `key: value` were expected"):
                _put_setting(found, f"{section}.{key}", value, name)
        elif section == CONTROLLER or not _is_empty(node):
            _put_setting(found, section, node, name)
    return found


def _import_yaml() -> Any:
    """Returns the module yaml; `UsageError` with a remedy if it is not installed."""
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise UsageError(
            "--config-file needs PyYAML, which is not installed; pip install 'unisono[horovod]', or give the settings as flags"
        ) from error
    return yaml


def _pairs(node: Any, name: str, expected: str) -> Iterator[tuple[str, Any]]:
    """Yields the keys of a mapping, with underscores, and their nodes. Raises `UsageError` with the line for anything but a
    mapping."""
    if node.id != "mapping":
        raise _not_understood(name, node.start_mark, expected)
    for key, value in node.value:
        if key.id != "scalar":
            raise _not_understood(name, key.start_mark, expected)
        yield key.value.replace("-", "_"), value


def _put_setting(found: dict[str, str], place: str, node: Any, name: str) -> None:
    """Adds a setting unless its value is empty. Raises `UsageError` for a name that is not known and for more than one value."""
    if place not in KNOWN:
        section = place.partition(".")[0]
        like = ", ".join(one.partition(".")[2] for one in KNOWN if one.startswith(f"{section}."))
        sections = ", ".join(dict.fromkeys(one.partition(".")[0] for one in KNOWN))
        remedy = f"the keys of {section} are {like}" if like else f"the sections are {sections}"
        line = node.start_mark.line + 1
        raise UsageError(f"{name}, line {line} sets {place}, which horovodrun does not know (--config-file); {remedy}")
    if node.id != "scalar":
        raise _not_understood(name, node.start_mark, f"{place} must be one value")
    if not _is_empty(node):
        found[place] = node.value


def _is_empty(node: Any) -> bool:
    """Whether a value stands for nothing: empty, null, ~ or none, without quotes."""
    return node.style is None and node.value.lower() in EMPTY


def _not_understood(name: str, mark: Any, why: str) -> UsageError:
    """Returns the error for a line of the file that is not understood."""
    return UsageError(
        f"{name}, line {mark.line + 1} is not understood (--config-file): {why}; write sections with lines `key: value`"
    )


def controller_of(settings: Mapping[str, str]) -> str | None:
    """Returns gloo or mpi, if the settings choose one, else None. Pure."""
    controller = settings.get(CONTROLLER, "").lower()
    if controller not in ("", "gloo", "mpi"):
        raise UsageError(f"controller must be gloo or mpi; received {controller!r} (--config-file)")
    return controller or None
