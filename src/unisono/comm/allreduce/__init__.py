"""One all-reduce algorithm a file, over send and receive; users choose by the file's name (`--allreduce`).

`engine` has no file: it is the engine's own all-reduce. `node_aware` composes two communicators; `install.py` wires it.

Imported by comm; imports comm.
"""

from __future__ import annotations

OVER_MESSAGES = ("auto", "ring", "recursive_doubling", "rabenseifner")
"""Algorithms with `prepare(comm, nodes) -> Reducer`: `comm` is used by nothing else, and `nodes[r]` is the node of its member r."""
