"""The names under which an optimiser's gradients are reduced, and the groups that are reduced together. Local."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

Groups = int | Sequence[Sequence[Tensor]] | None


def parameter_names(
    param_groups: Sequence[Mapping[str, Any]], named_parameters: Iterable[tuple[str, Tensor]] | None
) -> dict[Tensor, str]:
    """Returns a name for every parameter of the optimiser; `ValueError` for names that are missing or given twice."""
    held = [one for group in param_groups for one in group["params"]]
    if named_parameters is None:
        return {
            one: f"noname.{number}.{position}"
            for number, group in enumerate(param_groups)
            for position, one in enumerate(group["params"])
        }
    named = list(named_parameters)
    if any(not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)) for pair in named):
        raise ValueError("named_parameters must be pairs of a name and a parameter; give model.named_parameters()")
    twice = [name for name, count in Counter(name for name, _ in named).items() if count > 1]
    if twice:
        raise ValueError(f"named_parameters has duplicate names: {', '.join(twice)}; give each parameter its own name")
    names = {one: name for name, one in named}
    missing = sum(one not in names for one in held)
    if missing:
        raise ValueError(
            f"named_parameters lacks {missing} of the {len(held)} parameters of the optimizer; name all of them, or leave "
            "named_parameters out"
        )
    return {one: names[one] for one in held}


def name_newcomers(names: dict[Tensor, str], param_groups: Sequence[Mapping[str, Any]]) -> None:
    """Adds names of parameters that were added by `add_param_group`."""
    for number, group in enumerate(param_groups):
        for position, one in enumerate(group["params"]):
            names.setdefault(one, f":added.{number}.{position}")  # the colon keeps it apart from names of the user's


def parameter_groups(held: Sequence[Tensor], groups: Groups) -> list[list[Tensor]]:
    """Returns the groups of parameters that are reduced together, their members in one order on all ranks; parameters in no group
    are reduced alone."""
    if groups is None or (isinstance(groups, int) and groups == 0):
        return []
    if isinstance(groups, int):
        if groups < 0:
            raise ValueError(f"groups must be a number of groups, 0 or more, or lists of parameters; received {groups}")
        count = min(groups, len(held))
        bounds = [len(held) * part // count for part in range(count + 1)] if count else []
        return [list(held[begin:end]) for begin, end in pairwise(bounds)]
    if not isinstance(groups, (list, tuple)) or not all(isinstance(group, (list, tuple)) for group in groups):
        raise ValueError(
            f"groups must be a number of groups, 0 or more, or lists of parameters; received a {type(groups).__name__}"
        )
    members = [one for group in groups for one in group]
    if not all(isinstance(one, torch.Tensor) for one in members):
        raise ValueError("groups must be lists of parameters; received something else in one of them")
    if len(set(members)) < len(members):
        raise ValueError("groups contain a parameter twice; put each parameter into one group")
    known = set(held)
    return [[one for one in group if one in known] for group in groups if any(one in known for one in group)]
