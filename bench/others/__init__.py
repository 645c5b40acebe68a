"""Programs of others that `bench.programs_of_others` runs: which, with what in the place of their data, and how they are moved."""

from __future__ import annotations

from importlib import import_module

from bench.others.program import Program

FAMILIES = ("keras_io", "tensorflow_tutorials", "pytorch_examples", "lightning_examples", "optuna_examples")


def programs() -> list[Program]:
    """All programs, by family."""
    return [program for family in FAMILIES for program in import_module(f"bench.others.{family}").PROGRAMS]


def find(name: str) -> Program:
    """The program of this name."""
    return next(program for program in programs() if program.name == name)
