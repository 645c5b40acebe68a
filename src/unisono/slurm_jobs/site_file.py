"""The site file: what a computing centre requires of every job: account, partition, modules, container, other options.

account = "physics" partition = "gpu" modules = ["python/3.11", "cuda/12.4"] preamble = "source ~/venv/bin/activate" container =
"apptainer exec --nv image.sif" sbatch = { gpus-per-task = 1, constraint = "a100", exclusive = true }
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unisono.errors import UsageError, unknown_name

VARIABLE = "UNISONO_SITE"
LOCAL_FILE = Path("unisono-site.toml")
KEYS: Mapping[str, tuple[type, str]] = {
    "account": (str, "a text"),
    "partition": (str, "a text"),
    "modules": (list, "a list of texts"),
    "preamble": (str, "a text"),
    "container": (str, "a text, the command in front of unisono"),
    "sbatch": (dict, "a table: option = value"),
}


@dataclass(frozen=True)
class Site:
    """The values of a site file. `sbatch` holds account and partition too: long name -> value, None for one without."""

    modules: tuple[str, ...] = ()
    preamble: str = ""
    container: str = ""
    sbatch: Mapping[str, str | None] = field(default_factory=dict)


def find(env: Mapping[str, str], given: str | None = None) -> Path | None:
    """Local: returns the first file that exists: the one given, that of the variable, of this folder, of the user; None where
    there is none."""
    if asked := given or env.get(VARIABLE):
        path = Path(asked).expanduser()
        if not path.is_file():
            place = "--site" if given else f"{VARIABLE}, environment"
            raise UsageError(f"there is no site file {path} ({place}); check the path")
        return path
    home = Path(env.get("XDG_CONFIG_HOME") or Path(env.get("HOME", "~")).expanduser() / ".config")
    return next((path for path in (LOCAL_FILE, home / "unisono" / "site.toml") if path.is_file()), None)


def read(path: Path) -> Site:
    """Local: reads a site file; refuses keys that it does not know, as a key without effect would be missed only in the job."""
    try:
        found = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"the site file {path} cannot be read: {error}; correct it") from error
    for key, value in found.items():
        if key not in KEYS:
            raise unknown_name("key", key, KEYS, f"in the site file {path}")
        kind, words = KEYS[key]
        if not isinstance(value, kind):
            raise UsageError(f"{key} in {path} must be {words}; received {value!r}")
        if key == "container" and "\n" in found["container"].strip():
            raise UsageError(f"container in {path} must be one line, as it is written in front of the command")
    for module in found.get("modules", ()):
        if not isinstance(module, str):
            raise UsageError(f"modules in {path} must be a list of texts; one of them is {module!r}")
    options: dict[str, str | None] = {key: found[key] for key in ("account", "partition") if key in found}
    for name, value in found.get("sbatch", {}).items():
        if name in options:
            raise UsageError(f"{path} sets {name} twice: at the top level and under [sbatch]; set it once")
        options |= _sbatch_option(name, value, path)
    return Site(tuple(found.get("modules", ())), found.get("preamble", ""), found.get("container", "").strip(), options)


def _sbatch_option(name: str, value: Any, path: Path) -> dict[str, str | None]:
    """Returns one option of sbatch as name -> value: None for a flag, nothing for a flag that is off. Raises `UsageError` for any
    other type.
    """
    if not name.strip("-") or name.startswith("-"):
        raise UsageError(f"options of sbatch in {path} must be written without leading dashes; received {name!r}")
    if isinstance(value, bool):
        return {name: None} if value else {}
    if isinstance(value, (str, int)):
        return {name: str(value)}
    raise UsageError(f"sbatch.{name} in {path} must be a text, a whole number or true; received {value!r}")
