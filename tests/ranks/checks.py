"""Programs whose functions `check_...` are the tests: their names, without loading what they import."""

from __future__ import annotations

import ast
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"


def names_in(*programs: str) -> list[str]:
    """Local: the checks of these files, in their order."""
    trees = [ast.parse((PROGRAMS / program).read_text()) for program in programs]
    return [
        node.name.removeprefix("check_")
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
    ]
