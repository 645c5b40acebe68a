"""`import horovod.torch` gives `unisono.horovod.torch`, the same module object, in processes that were started for it.

A launcher puts `stand_in_folder()` in front of PYTHONPATH; the package in it calls `install_alias`, which puts `unisono.horovod`
under the name `horovod` and a finder in front of all others that does the same for every module below.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from unisono.errors import UsageError
from unisono.launch.excepthook import install_excepthook

NAME, OURS = "horovod", "unisono.horovod"
INSTALLED = frozenset(("site-packages", "dist-packages"))
"""Folders whose contents pip knows."""

REMEDIES: Mapping[str, str] = {
    "spark": "start the program with unisono horovodrun, under SLURM with srun, or call horovod.run(function, num_proc=N)",
    "ray": "start the program with unisono horovodrun, under SLURM with srun, or call horovod.run(function, num_proc=N)",
    "runner": "use unisono horovodrun, or horovod.run(function, num_proc=N)",
    "tensorflow.data": "let every rank read its own part: dataset.shard(hvd.size(), hvd.rank())",
    "mxnet": "MXNet is no longer developed; move the model to horovod.torch or horovod.keras",
}
"""Parts of Horovod that are not here -> what to do instead. The import of one says so; any other name is not found, so that
programs may probe for it."""


def stand_in_folder() -> Path:
    """Returns the folder to put in front of PYTHONPATH. Local."""
    return Path(__file__).parent / "stand_in"


def real_horovod(search: Sequence[str], finders: Iterable[object] = ()) -> str | None:
    """Returns where the folders of `search`, or these finders (`sys.meta_path`), have a package horovod that is not ours; None if
    nowhere. Local."""
    folders = [folder for folder in search if not _is_same_folder(folder, stand_in_folder())]
    # One that was installed as editable has a finder of its own. One without find_spec is of an old kind that nobody asks any more.
    others = [one for one in finders if one is not PathFinder and not isinstance(one, HorovodFinder) and hasattr(one, "find_spec")]
    specs: list[ModuleSpec | None] = [PathFinder.find_spec(NAME, folders), *(one.find_spec(NAME, None) for one in others)]
    for spec in specs:
        # A folder without __init__.py is no package: somebody's data or results may be called so.
        if (
            spec is not None
            and spec.has_location
            and spec.origin
            and not _is_same_folder(str(Path(spec.origin).parents[1]), stand_in_folder())
        ):
            return spec.origin
    return None


def refuse_a_real_one(search: Sequence[str], finders: Iterable[object] = ()) -> None:
    """Raises `UsageError` if a real Horovod is installed, as nobody could tell which of the two a program uses. Local."""
    found = real_horovod(search, finders)
    if found is None:
        return
    otherwise = "or leave out --horovod and write `import unisono.horovod.torch as hvd` in the program"
    if not INSTALLED.intersection(Path(found).parts):  # a checkout, or somebody's own file
        raise UsageError(
            f"{found} is also called horovod, so `import horovod` is ambiguous; rename or move it, start from another folder, "
            f"{otherwise}"
        )
    raise UsageError(
        f"a real Horovod is installed ({found}), so `import horovod` is ambiguous; uninstall it (pip uninstall horovod), "
        f"{otherwise}"
    )


def is_in_force() -> bool:
    """Whether `import horovod` means this package in this process. Local."""
    return any(isinstance(finder, HorovodFinder) for finder in sys.meta_path)


def install_alias(name: str, folder: str) -> None:
    """Makes `horovod` another name of `unisono.horovod`; the package in the stand-in folder calls it when it is imported. Local."""
    install_excepthook()
    refuse_a_real_one(sys.path, sys.meta_path)
    if not _is_same_folder(str(Path(folder).parent), stand_in_folder()):
        raise UsageError(
            f"`import horovod` was found in {folder}, but this Unisono is {stand_in_folder()}; start the program with the same "
            f"Python: {sys.executable} -m unisono horovodrun ..."
        )
    if not is_in_force():
        sys.meta_path.insert(0, HorovodFinder())
    sys.modules[name] = importlib.import_module(OURS)


class HorovodFinder(MetaPathFinder):
    """Finds `horovod.a.b` as `unisono.horovod.a.b`. Local."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - as importlib calls it
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Returns the spec of `horovod.a.b`, which loads `unisono.horovod.a.b`; None for other names and for modules that do not
        exist. Raises `ModuleNotFoundError` with a remedy for parts of Horovod that are left out."""
        if not fullname.startswith(f"{NAME}."):
            return None
        ours = f"{OURS}{fullname.removeprefix(NAME)}"
        try:
            found = importlib.util.find_spec(ours)
        except ModuleNotFoundError as error:  # a module that is no package has nothing below it
            if not (error.name or "").startswith(OURS):
                raise
            found = None
        if found is None:
            _refuse_left_out_part(fullname)
            return None
        return ModuleSpec(fullname, _SameModule(ours), is_package=found.submodule_search_locations is not None)


class _SameModule(Loader):
    """A loader that returns the module that is loaded under another name."""

    def __init__(self, ours: str) -> None:
        self._ours = ours
        self._own: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002 - as importlib calls it
        """Returns the module under its own name, which is imported if it was not yet."""
        module = importlib.import_module(self._ours)
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restores the spec of a module that has run under its own name: importlib has overwritten it, and reload and pickle use
        it."""
        module.__spec__ = self._own


def _refuse_left_out_part(fullname: str) -> None:
    """Raises ModuleNotFoundError with the remedy for a part of Horovod that is left out on purpose; any other name is simply not
    found."""
    part = f"{fullname.removeprefix(NAME + '.')}."
    for name, remedy in REMEDIES.items():
        if part.startswith(f"{name}."):
            raise ModuleNotFoundError(f"{fullname} is not part of Unisono's drop-in for Horovod; {remedy}", name=fullname)


def _is_same_folder(folder: str, other: Path) -> bool:
    return Path(folder or ".").resolve() == other.resolve()
