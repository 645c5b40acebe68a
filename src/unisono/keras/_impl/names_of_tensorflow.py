"""Names that a strategy of tf.distribute has and ours has not, with what to use instead."""

from __future__ import annotations

from collections.abc import Mapping

OWN_ROWS = (
    "every worker takes its own rows of each batch instead: "
    "dataset.map(lambda x, y: (x[strategy.comm.rank::strategy.comm.size], y[strategy.comm.rank::strategy.comm.size]))"
)
INSTEAD: Mapping[str, str] = {
    "experimental_distribute_dataset": OWN_ROWS,
    "distribute_datasets_from_function": OWN_ROWS,
    "experimental_distribute_values_from_function": OWN_ROWS,
    "experimental_local_results": "strategy.run returns the value of this worker, not one for each; use the value itself",
    "gather": "use strategy.comm.allgather_object for small values, or strategy.reduce",
    "cluster_resolver": "use strategy.is_chief, strategy.comm.rank and strategy.comm.size",
    "extended": "use strategy.run and strategy.reduce",
}


def missing_name(kind: str, name: str) -> str:
    """Pure: what is said of an attribute that a strategy does not have."""
    told = f"{kind!r} object has no attribute {name!r}"
    return f"{told}; {INSTEAD[name]}" if name in INSTEAD else told
