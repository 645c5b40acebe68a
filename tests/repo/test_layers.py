"""The rules of the house, read from the syntax trees of `src/unisono`; each rule is also shown to fail when broken."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from types import MappingProxyType

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "unisono"

FACADE = "__init__"
"""`unisono/__init__.py`: stands above all packages, so that nothing inside imports it, and loads them only when asked."""

LAYERS = MappingProxyType(
    {
        **dict.fromkeys(("errors", "events", "registry", "version", "task", "files"), 0),
        "cluster": 1,
        "stopping": 2.0,
        "launch": 2.1,
        "slurm_jobs": 2.2,
        **dict.fromkeys(("comm", "model", "data", "optim"), 3),
        **dict.fromkeys(("metrics", "algorithms"), 4),
        **dict.fromkeys(("training", "observe"), 5),
        "run": 6,
        "own_loop": 7,
        "start_training": 7.1,
        "api": 7.2,
        **dict.fromkeys(("tuning", "predict", "horovod", "keras"), 7),
        **dict.fromkeys(("doctor", "testing"), 8),
        "commands": 9,
        "cli": 10,
        "__main__": 11,
        FACADE: 12,
    }
)

HOROVOD_ON_TENSORFLOW = tuple(
    f"horovod/_impl/tensorflow/{name}.py"
    for name in (
        *("blocking_calls", "compression", "distributed_optimizer", "elastic_state", "error_names", "function_tracing"),
        *("gradient_accumulation", "gradient_reduction", "gradient_tape", "graph_exchange", "operation_names", "operations"),
        *("rank_queries", "sparse_slices", "sync_batch_norm", "variable_broadcast"),
    )
)
"""The front for TensorFlow: `unisono.horovod.tensorflow` loads it when a name of it is used."""
HOROVOD_ON_KERAS = tuple(
    f"horovod/_impl/keras/{name}.py"
    for name in (
        *("compile_hooks", "compression", "distributed_optimizer", "elastic_state", "fit_callbacks", "gradient_transport"),
        *("old_names", "rate_callbacks", "reduced_updates", "replicas", "saved_models", "step_backend", "value_operations"),
    )
)
"""The front for Keras: those of its files that import it, which is their subject."""

OWNERS = MappingProxyType(
    {
        "mpi4py": ("comm/engines/mpi.py",),
        "keras": (
            *(
                f"model/keras/{name}.py"
                for name in (
                    "backends",
                    "compiled",
                    "on_torch",
                    "optimizer",
                    "packed_variables",
                    "pure",
                    "make_replica",
                    "hidden_state",
                    "additivity",
                )
            ),
            "metrics/keras.py",
            "keras/_impl/strategy.py",
            *(f"keras/_impl/{name}.py" for name in ("backup", "callbacks", "fitting", "own_updates", "seeding")),
            "keras/_impl/shared_model.py",
            "keras/_impl/own_numbers.py",
            "testing/model_contract.py",
            "horovod/_impl/tensorflow/sync_batch_norm.py",
            *HOROVOD_ON_KERAS,
        ),
        "tensorflow": (
            "model/keras/on_tensorflow.py",
            "model/keras/hidden_state.py",
            "horovod/_impl/keras/step_on_tensorflow.py",
            *HOROVOD_ON_TENSORFLOW,
        ),
        "jax": ("model/keras/on_jax.py", "horovod/_impl/keras/step_on_jax.py"),
        "optuna": ("tuning/search/search.py", "tuning/workers/objective.py"),
        "zmq": (
            "comm/exchange/zmq_server.py",
            "comm/exchange/zmq_caller.py",
            "comm/exchange/zmq_gate.py",
            "comm/exchange/zmq_listen.py",
        ),
        "h5py": ("data/sources/hdf5.py",),
        "cloudpickle": (
            "task/task_file.py",
            "tuning/workers/objective.py",
            "horovod/_impl/torch/object_exchange.py",
            "horovod/_impl/launching/function_parcel.py",
        ),
        "yaml": ("horovod/_impl/launching/settings_file.py",),
        "matplotlib": ("observe/plots.py",),
        "rich": ("observe/bar.py",),
        "jinja2": ("observe/pages/frame.py",),
        "safetensors": ("training/run_folder/weights.py",),
    }
)
"""Heavy package -> the files that may import it, inside functions. Empty until the module that needs it is written."""

HOROVOD_STANDS_ON = ("cluster", "comm", "launch", "optim", "errors", "horovod")
"""What the Horovod front may import: it must work without a model, a task or a run of ours."""
IMPORTERS = re.compile(r"Imported by [^.]*\.")
"""The sentence in `__init__.py` (test_package_docstrings.py), which names all that import a package."""
KNOW_HOROVOD = ("cli.py", "commands/horovodrun.py", "commands/run.py")
"""The doors to it from outside its package: `unisono run --horovod` and `unisono horovodrun`."""

LOADED_AT_USE = (
    *(f"model/keras/on_{name}.py" for name in ("jax", "tensorflow")),
    *(f"horovod/_impl/keras/step_on_{name}.py" for name in ("jax", "tensorflow")),
    *(f"horovod/_impl/keras/{name}.py" for name in ("elastic_state", "fit_callbacks", "rate_callbacks")),
    *HOROVOD_ON_TENSORFLOW,
)
"""Owners that are themselves imported only where Keras runs on their package."""

COMMAND_LINES = ("cli.py", "testing/contract.py", "testing/model_contract.py", "testing/algorithm_contract.py")
"""Who may read the command line. The contract suites are programs too: `srun python -m unisono.testing.contract`."""

ENVIRONMENT = frozenset({"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"})
MUTATORS = frozenset({"update", "setdefault", "pop", "popitem", "clear", "__setitem__", "__delitem__"})
CONTAINERS = "list dict set bytearray defaultdict OrderedDict Counter deque WeakSet WeakKeyDictionary WeakValueDictionary"
HANDLES = "Lock RLock Condition Event Semaphore Barrier Thread local Queue SimpleQueue ContextVar count cycle iter open"
STATEFUL_CALLS = frozenset(f"{CONTAINERS} {HANDLES}".split())
READ_ONLY_TYPES = frozenset({"Mapping", "Sequence", "Collection", "Set", "AbstractSet", "Iterable"})
"""Annotations under which the type checker refuses every change, so that a plain display is a constant."""
EMPTY_WORDS = frozenset({"util", "utils", "helper", "helpers", "manager", "managers", "misc"})


@dataclass(frozen=True)
class Source:
    """One file of the package, by its path inside it."""

    path: PurePosixPath
    tree: ast.Module

    @property
    def package(self) -> str:
        """Of the top level, or the name of a module that stands there."""
        return self.path.parts[0].removesuffix(".py")


@dataclass(frozen=True)
class Import:
    line: int
    target: str
    at_use: bool
    """Inside a function, or for the type checker only."""


Breaches = Iterator[tuple[int, str]]
Rule = Callable[[Source], Breaches]


# ---- reading ---------------------------------------------------------------------------------------------------------


def sources(package: Path) -> list[Source]:
    return [
        Source(PurePosixPath(file.relative_to(package).as_posix()), parsed(file.read_text()))
        for file in sorted(package.rglob("*.py"))
    ]


@cache
def parsed(text: str) -> ast.Module:
    """Each file once for all rules."""
    return ast.parse(text)


def imports(source: Source) -> Iterator[Import]:
    yield from _imports(source.tree, source, at_use=False)


def _imports(node: ast.AST, source: Source, at_use: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(child.lineno, alias.name, at_use)
        elif isinstance(child, ast.ImportFrom):
            base = _absolute(child, source)
            for alias in child.names:
                yield Import(child.lineno, f"{base}.{alias.name}", at_use)
        elif isinstance(child, ast.Call) and _last_name(child.func) in ("import_module", "__import__", "load"):
            yield from (
                Import(child.lineno, name.value, at_use)
                for name in child.args[:1]
                if isinstance(name, ast.Constant) and isinstance(name.value, str)
            )
        inner = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) or (
            isinstance(child, ast.If) and _last_name(child.test) == "TYPE_CHECKING"
        )
        yield from _imports(child, source, at_use or inner)


def _absolute(node: ast.ImportFrom, source: Source) -> str:
    if not node.level:
        return node.module or ""
    package = ("unisono", *source.path.parts[:-1])
    return ".".join((*package[: len(package) - node.level + 1], *([node.module] if node.module else [])))


def _last_name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _uses(source: Source, module: str, names: frozenset[str]) -> Iterator[tuple[ast.AST, ast.AST, ast.AST]]:
    """Each `module.name` (under any alias) and each `from module import name`, with the two nodes around it."""
    nodes = list(ast.walk(source.tree))
    aliases = {
        alias.asname or alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names if alias.name == module
    }
    around = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
    for node in nodes:
        attribute = isinstance(node, ast.Attribute) and node.attr in names and _last_name(node.value) in aliases
        if attribute or (
            isinstance(node, ast.ImportFrom) and node.module == module and names & {alias.name for alias in node.names}
        ):
            parent = around[node]
            yield node, parent, around.get(parent, parent)


# ---- the rules -------------------------------------------------------------------------------------------------------


def imports_go_downwards(source: Source) -> Breaches:
    """A package imports only packages of lower layers; those of one layer do not import each other (those of layer 0 do)."""
    if source.package not in LAYERS:
        yield 1, f"package {source.package!r} has no layer; give it one in LAYERS (tests/repo/test_layers.py)"
        return
    here = LAYERS[source.package]
    for item in imports(source):
        parts = item.target.split(".")
        if parts[0] != "unisono":
            continue
        imported = parts[1] if len(parts) > 1 and parts[1] in LAYERS else FACADE
        there = LAYERS[imported]
        if source.package == FACADE:
            if there > 0 and not item.at_use:
                yield item.line, f"imports {item.target} when unisono is imported; import it at use"
        elif imported != source.package and there >= here and (here, there) != (0, 0):
            yield (
                item.line,
                f"layer {here} ({source.package}) imports {item.target} of layer {there}; imports go downwards only",
            )


def the_horovod_front_stands_on_comm(source: Source) -> Breaches:
    """`horovod/` knows the packages of launching, communication and optimisers and nothing of models, data or training."""
    if source.package != "horovod":
        return
    for item in imports(source):
        parts = item.target.split(".")
        if parts[0] == "unisono" and parts[1:2] and parts[1] not in HOROVOD_STANDS_ON:
            yield item.line, f"imports {item.target}; horovod/ stands on {' and '.join(HOROVOD_STANDS_ON)} only"


def only_its_doors_know_horovod(source: Source) -> Breaches:
    """Nothing outside `horovod/` names it, in code or text, but the two commands that start programs written for it."""
    if source.package == "horovod" or str(source.path) in KNOW_HOROVOD:
        return
    for node in ast.walk(source.tree):
        texts = [value for _, value in ast.iter_fields(node) if isinstance(value, str)]
        if any("horovod" in IMPORTERS.sub("", text).lower() for text in texts):
            yield getattr(node, "lineno", 1), "names Horovod; let horovod/ give what it needs as values"


def heavy_packages_have_owners(source: Source) -> Breaches:
    """Frameworks are imported by the module that owns them, at use."""
    for item in imports(source):
        package = item.target.split(".")[0]
        if package not in OWNERS:
            continue
        if str(source.path) not in OWNERS[package]:
            yield item.line, f"imports {package}; only {' and '.join(OWNERS[package]) or 'nobody yet'} may"
        elif not item.at_use and str(source.path) not in LOADED_AT_USE:
            yield item.line, f"imports {package} when it is itself imported; import it inside the function that uses it"


def environment_stays_in_cluster(source: Source) -> Breaches:
    """The environment is read in `cluster/`, `launch/` and `cli.py` only, and written by `launch/this_process.py` only."""
    may_read = source.package in ("cluster", "launch", "cli")
    may_write = str(source.path) == "launch/this_process.py"
    for node, parent, grandparent in _uses(source, "os", ENVIRONMENT):
        line = getattr(node, "lineno", 1)
        if not may_read:
            yield line, "touches the environment; only cluster/, launch/ and cli.py may, others receive values"
        elif not may_write and _writes(node, parent, grandparent):
            yield line, "writes the environment; only launch/this_process.py may, before libraries are loaded"


def _writes(node: ast.AST, parent: ast.AST, grandparent: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom) or _last_name(node) in ("putenv", "unsetenv"):
        return True  # an imported `environ` cannot be followed, so it counts as written
    if isinstance(parent, ast.Subscript):
        return isinstance(parent.ctx, (ast.Store, ast.Del)) or (
            isinstance(grandparent, ast.AugAssign) and grandparent.target is parent
        )
    if isinstance(parent, ast.Attribute):
        return parent.attr in MUTATORS and isinstance(grandparent, ast.Call) and grandparent.func is parent
    return isinstance(parent, (ast.AugAssign, ast.Assign, ast.AnnAssign)) and node is not getattr(parent, "value", None)


def command_line_stays_in_cli(source: Source) -> Breaches:
    """The command line is read by the programs only and passed on as values."""
    if str(source.path) in COMMAND_LINES:
        return
    for node, _, _ in _uses(source, "sys", frozenset({"argv", "orig_argv"})):
        yield getattr(node, "lineno", 1), f"reads the command line; only {' and '.join(COMMAND_LINES)} may"
    for call in ast.walk(source.tree):
        if isinstance(call, ast.Call) and _last_name(call.func) in ("parse_args", "parse_known_args") and not call.args:
            yield (
                call.lineno,
                f"reads the command line; only {' and '.join(COMMAND_LINES)} may, others are given the arguments",
            )


def modules_hold_no_state(source: Source) -> Breaches:
    """No module-level value that can change: constants are tuples, frozen sets, mapping proxies or typed read-only."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Global):
            yield (
                node.lineno,
                f"rebinds {', '.join(node.names)} of the module; keep state in an object that is passed on",
            )
    for statement in _module_level(source.tree.body):
        if isinstance(statement, ast.AnnAssign):
            names, value = [_last_name(statement.target)], statement.value
            if any(_last_name(part) in READ_ONLY_TYPES for part in ast.walk(statement.annotation)):
                continue
        elif isinstance(statement, ast.Assign):
            names, value = [_last_name(target) for target in statement.targets], statement.value
        else:
            continue
        if names != ["__all__"] and value is not None and _can_change(value):
            remedy = "make it a tuple, frozenset or MappingProxyType, or annotate it as Mapping or Sequence"
            yield statement.lineno, f"{', '.join(names)} can change; {remedy}"


def _module_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        for field in ("body", "orelse", "finalbody", "handlers"):
            if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                yield from _module_level(getattr(statement, field, []))


def _can_change(value: ast.expr) -> bool:
    if isinstance(value, (ast.Tuple, ast.Starred, ast.IfExp, ast.BoolOp)):
        return any(_can_change(part) for part in ast.iter_child_nodes(value) if isinstance(part, ast.expr))
    if isinstance(value, ast.Call):
        return _last_name(value.func) in STATEFUL_CALLS
    return isinstance(value, (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp, ast.GeneratorExp))


def names_say_something(source: Source) -> Breaches:
    """No file or folder is called utils, helpers, manager or misc."""
    if source.package == "horovod" and "_impl" not in source.path.parts:  # Horovod's names: programs import them by path
        return
    for part in source.path.parts:
        if EMPTY_WORDS & set(part.removesuffix(".py").lower().split("_")):
            yield 1, f"is called {part!r}; name it after its idea"


RULES: tuple[Rule, ...] = (
    imports_go_downwards,
    the_horovod_front_stands_on_comm,
    only_its_doors_know_horovod,
    heavy_packages_have_owners,
    environment_stays_in_cluster,
    command_line_stays_in_cli,
    modules_hold_no_state,
    names_say_something,
)


def breaches(rule: Rule, package: Path) -> list[str]:
    return [f"{source.path}:{line} {what}" for source in sources(package) for line, what in rule(source)]


@cache
def real_breaches(rule: Rule) -> list[str]:
    return breaches(rule, PACKAGE)


# ---- the tests -------------------------------------------------------------------------------------------------------


def test_layers_list_exactly_the_packages_that_exist() -> None:
    assert set(LAYERS) == {source.package for source in sources(PACKAGE)}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps(rule: Rule) -> None:
    found = real_breaches(rule)
    assert not found, f"{rule.__doc__}\n" + "\n".join(found)


BROKEN: tuple[tuple[Rule, str, str], ...] = (
    (imports_go_downwards, "cluster/new.py", "from unisono.comm.base import Communicator"),
    (imports_go_downwards, "cluster/new.py", "def f():\n    import unisono.comm.base"),
    (imports_go_downwards, "cluster/new.py", "from ..comm import base"),
    (imports_go_downwards, "comm/new.py", "from unisono.model.flat import FlatLayout"),
    (imports_go_downwards, "comm/new.py", "import importlib\nimportlib.import_module('unisono.training.trainer')"),
    (imports_go_downwards, "errors_new.py", "X = 1"),
    (imports_go_downwards, "errors.py", "from unisono.cluster.topology import Topology"),
    (imports_go_downwards, "comm/new.py", "import unisono"),
    (imports_go_downwards, "comm/new.py", "from unisono import connect"),
    (imports_go_downwards, "training/new.py", "from unisono.observe import console"),
    (imports_go_downwards, "doctor.py", "from unisono.cli import main"),
    (imports_go_downwards, "__init__.py", "from unisono.comm.base import SUM"),
    (the_horovod_front_stands_on_comm, "horovod/_impl/new.py", "from unisono.model.flat import FlatLayout"),
    (only_its_doors_know_horovod, "cluster/new.py", "def f():\n    import unisono.horovod.torch"),
    (only_its_doors_know_horovod, "comm/new.py", "def f(is_horovod):\n    return is_horovod"),
    (only_its_doors_know_horovod, "cluster/new.py", "NAME = 'HOROVOD_RANK'"),
    (heavy_packages_have_owners, "comm/shm_new.py", "def f():\n    from mpi4py import MPI"),
    (heavy_packages_have_owners, "comm/engines/mpi.py", "from mpi4py import MPI"),
    (heavy_packages_have_owners, "training/new.py", "def f():\n    import tensorflow.keras as tk"),
    (
        heavy_packages_have_owners,
        "doctor.py",
        "import importlib\ndef f():\n    return importlib.import_module('optuna')",
    ),
    (environment_stays_in_cluster, "comm/new.py", "import os\ndef f():\n    return os.environ.get('HOME')"),
    (environment_stays_in_cluster, "comm/new.py", "import os as system\nX = system.getenv('HOME')"),
    (environment_stays_in_cluster, "comm/new.py", "from os import environ"),
    (environment_stays_in_cluster, "cluster/new.py", "import os\nos.environ['HOME'] = '/'"),
    (environment_stays_in_cluster, "cluster/new.py", "import os\ndel os.environ['HOME']"),
    (environment_stays_in_cluster, "cli.py", "import os\nos.environ.setdefault('HOME', '/')"),
    (environment_stays_in_cluster, "cluster/new.py", "import os\nos.environ |= {'HOME': '/'}"),
    (environment_stays_in_cluster, "cluster/new.py", "import os\nos.putenv('HOME', '/')"),
    (command_line_stays_in_cli, "cluster/new.py", "import sys\ndef f():\n    return sys.argv[1:]"),
    (command_line_stays_in_cli, "comm/new.py", "from sys import argv"),
    (command_line_stays_in_cli, "doctor.py", "import argparse\ndef f():\n    argparse.ArgumentParser().parse_args()"),
    (modules_hold_no_state, "comm/new.py", "_CACHE = {}"),
    (modules_hold_no_state, "comm/new.py", "SEEN: set[int] = set()"),
    (modules_hold_no_state, "comm/new.py", "NAMES = ['a', 'b']"),
    (modules_hold_no_state, "comm/new.py", "try:\n    PARTS = ([1], 2)\nfinally:\n    pass"),
    (modules_hold_no_state, "comm/new.py", "import threading\nlock = threading.Lock()"),
    (modules_hold_no_state, "comm/new.py", "N = 0\ndef f():\n    global N\n    N += 1"),
    (names_say_something, "comm/utils.py", ""),
    (names_say_something, "helpers/__init__.py", ""),
    (names_say_something, "training/run_manager.py", ""),
)


@pytest.mark.parametrize(("rule", "file", "code"), BROKEN, ids=lambda part: getattr(part, "__name__", None))
def test_a_breach_is_found(rule: Rule, file: str, code: str, tmp_path: Path) -> None:
    real, target = PACKAGE / file, tmp_path / file
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(f"{real.read_text() if real.exists() else ''}\n{code}\n")
    before = real_breaches(rule)
    assert any(found.startswith(f"{file}:") for found in breaches(rule, tmp_path) if found not in before)


ALLOWED: tuple[tuple[str, str], ...] = (
    ("registry.py", "from unisono.errors import UsageError"),
    ("comm/engines/mpi.py", "def f():\n    from mpi4py import MPI\n    return MPI"),
    ("comm/engines/mpi.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from mpi4py import MPI"),
    ("comm/connect.py", "from unisono.cluster.resolve import resolve\nfrom .base import Communicator"),
    ("__init__.py", "def __getattr__(name):\n    from unisono.comm.connect import connect\n    return connect"),
    ("cluster/launchers/local.py", "import os\ndef f():\n    return dict(os.environ), os.environ['HOME'], os.getenv('HOME')"),
    ("launch/this_process.py", "import os\ndef f():\n    os.environ['HOME'] = '/'"),
    ("cli.py", "import sys\ndef f():\n    return sys.argv"),
    (
        "comm/base.py",
        "from collections.abc import Mapping\nNAMES: Mapping[str, int] = {'a': 1}\nPAIR = (1, 2)\n__all__ = ['PAIR']",
    ),
    ("comm/base.py", "import os\ndef f(environ):\n    return environ['HOME'], os.path"),
)


@pytest.mark.parametrize(("file", "code"), ALLOWED)
def test_what_is_allowed_is_not_reported(file: str, code: str, tmp_path: Path) -> None:
    target = tmp_path / file
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(code)
    assert [found for rule in RULES for found in breaches(rule, tmp_path)] == []
