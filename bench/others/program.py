"""One program of others: where it lies, what stands in for its data, and what is changed in its text."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FLOAT32_LIMIT = 1e-4
"""The `limit` of programs that compute in float32."""
SEED = 1
"""Of all generators, before the program begins."""
Change = tuple[str, str]
"""What is looked for, a regular expression, and what stands there instead."""
Found = dict[str, Any]
"""Arrays by name. Those of `BEFORE` are weights before the training; they say how far the weights have moved."""
WEIGHTS, BEFORE = "weights", "before"


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program, as it is run in one process and, moved, on two workers."""

    family: str
    """The module of bench.others that runs it."""
    name: str
    repository: str
    path: str
    stand_in: str
    """What stands in for its data, for the page."""
    moved: str
    """What a user changes to move it, for the page."""
    edits: Sequence[Change] = ()
    """Made in both runs: small sizes, and nothing random that depends on the process."""
    move: Sequence[Change] = ()
    """Made in the moved run."""
    keywords: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Arguments that calls of these names get in both runs."""
    arguments: Sequence[str] = ()
    """Of its command line."""
    environment: Mapping[str, str] = field(default_factory=dict)
    needs: str = ""
    """An expression of its family, evaluated among the program's names."""
    not_compared: str = ""
    """A regular expression for numbers that the program without Unisono gets wrong; `moved` says why."""
    documented: str = ""
    """Where the documentation says that its numbers will differ, and what to do."""
    limit: float = 1e-9
    """The largest relative difference that counts as equal."""
    one_folder: bool = False
    """Whether all workers run in one folder: where Unisono writes the files of all once."""

    def text(self, checkout: Path, is_moved: bool) -> dict[str, str]:
        """Local: its changed files by name; the first is the program."""
        file = checkout / self.repository / self.path
        files = notebook(file.read_text()) if file.suffix == ".ipynb" else {file.name: file.read_text()}
        for pattern, instead in [*self.edits, *(self.move if is_moved else ())]:
            counts = {name: re.subn(pattern, instead, text) for name, text in files.items()}
            if not any(count for _, count in counts.values()):
                raise SystemExit(
                    f"{self.path} has nothing like {pattern!r} any more; read it again and mend bench/others/{self.family}.py"
                )
            files = {name: text for name, (text, _) in counts.items()}
        return files


def notebook(text: str) -> dict[str, str]:
    """Pure: the programs of a notebook: `main.py`, with the modules that it writes, else all of its cells in their order."""
    cells = ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    written = {cell.split()[1]: cell.partition("\n")[2] for cell in cells if cell.startswith("%%writefile")}
    if "main.py" in written:
        return {"main.py": written.pop("main.py"), **written}
    return {"main.py": "\n".join(cell for cell in cells if not cell.lstrip().startswith(("%", "!")))}


class Adapted(ast.NodeTransformer):
    """Gives calls their new arguments, and passes what `evaluate` and `predict` return to `recorded`."""

    def __init__(self, keywords: Mapping[str, Mapping[str, Any]], recorded: Iterable[str] = ()) -> None:
        self._keywords, self._recorded = keywords, set(recorded)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        given = self._keywords.get(name, {})
        kept = [one for one in node.keywords if one.arg not in given]
        node.keywords = [*kept, *(ast.keyword(key, ast.Constant(value)) for key, value in given.items())]
        return ast.Call(ast.Name("recorded", ast.Load()), [node], []) if name in self._recorded else node


def compiled(program: Program, text: str, recorded: Sequence[str] = ()) -> Any:
    """Local: the code of a program, which it leaves in this folder, as TensorFlow reads the source of functions."""
    tree = Adapted(program.keywords, recorded).visit(ast.parse(text))
    adapted, file = ast.unparse(ast.fix_missing_locations(tree)), Path(program.path).with_suffix(".py").name
    write_whole(file, adapted)
    return compile(adapted, str(Path(file).resolve()), "exec", dont_inherit=True)


def write_whole(name: str, text: str) -> None:
    """Local: writes a file by renaming it, as all workers may do."""
    draft = Path(f"{name}-{os.getpid()}")
    draft.write_text(text)
    draft.replace(name)


Runs = Callable[[Program, dict[str, str], bool], Found]
"""What each family has as `run`: of its text, moved or not, the numbers that count."""
