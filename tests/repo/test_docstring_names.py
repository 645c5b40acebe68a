"""What a docstring of src names in backticks is there: a name that was changed in the code only would mislead its reader."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator

from tests.repo.test_map import SRC, packages

FOREIGN = frozenset(
    {
        "Live",  # of rich
        "StepLR(optimizer.optimizer, 10)",  # of PyTorch
        "add_param_group",  # of an optimiser of PyTorch
        "exclude_from_weight_decay",  # of an optimiser of Keras
        "io_callback",  # of JAX
        "my_package.my_algorithm",  # of a user
        "tf.compat.v1.local_variables_initializer",
        "tf.compat.v1.train.MonitoredTrainingSession(hooks=[...])",
        "tf.nn.compute_average_loss",
        "tf.nn.scale_regularization_loss",
        "train_x",  # in the file of SAT-6
        "train_y",
    }
)
"""Names of others, as they stand in docstrings."""
IN_BACKTICKS = re.compile(r"`([A-Za-z_][\w.]*(?:\([^`]*\))?)`")
ENDINGS_OF_FILES = frozenset({"csv", "html", "json", "jsonl", "md", "npz", "py", "safetensors", "toml", "txt"})


def trees() -> list[tuple[str, ast.Module]]:
    return [(str(file.relative_to(SRC)), ast.parse(file.read_text())) for file in sorted(SRC.rglob("*.py"))]


def texts(tree: ast.Module) -> list[ast.Constant]:
    """Docstrings, of attributes too."""
    values = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    return [value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)]


def known_names(tree: ast.Module) -> Iterator[str]:
    """All that the code itself names, in strings too: keys of files, options, names that are looked up."""
    docstrings = {id(text) for text in texts(tree)}
    for node in ast.walk(tree):
        for _, value in ast.iter_fields(node):
            for text in value if isinstance(value, list) else [value]:
                if isinstance(text, str) and id(node) not in docstrings:
                    yield from re.findall(r"[A-Za-z_]\w*", text)


def is_identifier(token: str) -> bool:
    """Whether it can be nothing but a name of Python: with an underscore, called, or in the case of classes."""
    if token.endswith("..."):  # the beginning of several names
        return False
    base, called, _ = token.partition("(")
    return base.split(".")[-1] not in ENDINGS_OF_FILES and bool(called or "_" in base or re.search(r"[A-Z][a-z]", base))


def unknown_names(docstring: str, known: frozenset[str]) -> list[str]:
    tokens = [token for token in IN_BACKTICKS.findall(docstring) if is_identifier(token) and token not in FOREIGN]
    return [token for token in tokens if not set(token.split("(")[0].split(".")) <= known]


def test_names_in_docstrings_exist() -> None:
    parsed = trees()
    in_code = {name for _, tree in parsed for name in known_names(tree)}
    folders = {part for folder in packages() for part in folder.relative_to(SRC).parts}
    known = frozenset({*in_code, *folders, *(path.split("/")[-1].removesuffix(".py") for path, _ in parsed), *dir(builtins)})
    found = [
        f"{path}:{text.lineno} names `{name}`"
        for path, tree in parsed
        for text in texts(tree)
        for name in unknown_names(str(text.value), known)
    ]
    assert found == []


def test_a_false_name_is_found() -> None:
    known = frozenset({"Store", "next_due", "close"})
    text = (
        "`Store.next_due`, `close()` and `some`; `next_one`, `Board.close`, `is_open()`, `Walker`; `a_file.json` and `--no_flag`."
    )
    assert unknown_names(text, known) == ["next_one", "Board.close", "is_open()", "Walker"]
