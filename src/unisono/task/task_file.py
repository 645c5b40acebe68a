"""Loads the `Task` of a file: the file is imported as a module, with its folder on the path as when Python runs it."""

from __future__ import annotations

import hashlib
import importlib.util
import pickle
import re
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from unisono.errors import UsageError
from unisono.task.task import Task
from unisono.task.train_config import TrainConfig

PICKLED = ".cloudpickle"
EXTRAS: Mapping[str, str] = {"tensorflow": "tensorflow", "jax": "jax", "jaxlib": "jax"}
"""Packages that Keras may run on, with the extra that brings them."""


def load_task(file: str) -> Task:
    """Local: returns the task that a file defines under the name `task`. An error inside the file itself keeps its traceback."""
    path = Path(file)
    check_file(path)
    module = _imported(path)
    found = getattr(module, "task", None)
    if found is None:
        others = [name for name, value in vars(module).items() if isinstance(value, Task)]
        hint = f"rename {others[0]} to task" if others else "add task = un.Task(model=..., data=..., ...) at its end"
        raise UsageError(f"{file} defines no `task`; {hint}")
    if not isinstance(found, Task):
        kind = found.__qualname__ if isinstance(found, type) else type(found).__name__
        raise UsageError(f"`task` in {file} must be one un.Task(...); received {kind}")
    return found


@dataclass(frozen=True)
class Pickled:
    """A training that a notebook or script passes to its workers."""

    task: Task | str
    config: TrainConfig
    result_file: str
    """The file into which rank 0 writes where the run directory is, or its error."""


def write_pickled(folder: Path, task: Task | str | Path, config: TrainConfig, result_file: str) -> Path:
    """Local: writes a training to a file for its workers; functions that are defined in a notebook or script are pickled by
    value."""
    import cloudpickle

    file = folder / f"task{PICKLED}"
    value = Pickled(task if isinstance(task, Task) else str(task), config, result_file)
    try:
        file.write_bytes(pickle.dumps((list(sys.path), cloudpickle.dumps(value))))
    except (TypeError, pickle.PicklingError) as error:
        raise UsageError(
            f"the task cannot be sent to its workers: {error}; create files, locks and the like inside model() or data(), "
            "or write the task to a file and give its path"
        ) from error
    return file


def read_pickled(file: Path) -> Pickled:
    """Local: reads what `write_pickled` wrote, for workers that we started ourselves. Modules are searched on the path of the
    writer."""
    paths, value = pickle.loads(file.read_bytes())
    sys.path.extend(path for path in paths if path not in sys.path)
    found = pickle.loads(value)
    assert isinstance(found, Pickled)
    return found


def check_file(path: Path) -> None:
    """Local: refuses a task file that is not there or is not Python, without running it."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name the task file in it, e.g. {path / 'task.py'}")
    if not path.exists():
        near = sorted(other.name for other in path.parent.glob("*.py")) if path.parent.is_dir() else []
        hint = f"; in {path.parent} there are {', '.join(near[:5])}" if near else "; check the path"
        raise UsageError(f"the task file {path} does not exist{hint}")
    if path.suffix == PICKLED:
        return
    if path.suffix != ".py":
        raise UsageError(f"the task file {path} must be a Python file (.py)")
    try:
        compile(path.read_bytes(), str(path), "exec")
    except SyntaxError as error:
        place = f", line {error.lineno}" if error.lineno else ""
        line = f": {error.text.strip()}" if error.text and error.text.strip() else ""
        raise UsageError(f"{path}{place}: {error.msg}{line}; correct it") from None
    except OSError as error:
        raise UsageError(f"the task file {path} cannot be read: {error.strerror}; check its permissions (ls -l)") from None
    except ValueError as error:
        raise UsageError(f"{path} cannot be read as Python: {error}; correct it") from None


def _imported(path: Path) -> ModuleType:
    """Local: runs the file as a module of its own, with its folder first on the path."""
    file = path.resolve()
    name = file.stem
    there = sys.modules.get(name)
    if not name.isidentifier() or name in sys.stdlib_module_names or (there is not None and there.__file__ != str(file)):
        name = f"task_file_{hashlib.sha256(bytes(file)).hexdigest()[:8]}"  # a task must not stand in for a module that is used
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = str(file.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.modules[name] = module  # so that its classes can be pickled and its annotations be read
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, ImportError) and "attempted relative import" in str(error):
            raise UsageError(
                f"{path}: {error}; its folder is on the path, so write `import NAME` instead of `from . import NAME`"
            ) from error
        if isinstance(error, Exception) and (why := _no_keras(error)):
            raise UsageError(f"{path} cannot be loaded: {why}") from error
        raise
    return module


def _no_keras(error: Exception) -> str | None:
    """Returns why Keras or its backend is missing; None where an error has another cause."""
    missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if missing == "keras":
        return "Keras is not installed here; pip install 'unisono[keras]'"
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    if not any("keras" in Path(file).parts for file in files):
        return None
    if missing in EXTRAS:
        return (
            f"the Keras backend {missing} (KERAS_BACKEND, else ~/.keras/keras.json, else tensorflow) is not installed; "
            f"pip install 'unisono[{EXTRAS[missing]}]', or set KERAS_BACKEND=torch, which is always installed"
        )
    found = re.match(r"Unable to import backend ?: ?(.*)", str(error))
    return f"Keras has no backend {found[1]!r} (KERAS_BACKEND); set it to torch, tensorflow or jax" if found else None
