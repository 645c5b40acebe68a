"""One all-reduce algorithm a file, over send and receive; users choose by the file's name (`--allreduce`).

`engine` has no file: it is the engine's own all-reduce. `node_aware` composes two communicators and is wired by the caller.
"""

from __future__ import annotations

OVER_MESSAGES = ("auto", "ring", "recursive_doubling", "rabenseifner")
"""Those with `prepare(comm, nodes) -> Reducer`: `comm` is a private duplicate and `nodes[r]` the node of its member r."""
