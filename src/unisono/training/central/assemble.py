"""From a task to the parts of a training through a centre."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from unisono.algorithms.central.rule import Rule
from unisono.comm.base import Communicator
from unisono.comm.single import alone
from unisono.errors import UsageError, unknown_name
from unisono.events import Spans
from unisono.model.torch import Body, TorchAdapter
from unisono.task import Task
from unisono.training.central.algorithm import Central
from unisono.training.central.arrivals import check_numbers
from unisono.training.central.division import Asked, Division
from unisono.training.central.looks import copy_of
from unisono.training.central.replica import check_model
from unisono.training.central.simulated import Clock
from unisono.training.central.slices import Cut


def division_of(kind: type[Any], name: str, size: int, asked: Asked, replay: object) -> Division | None:
    """Pure: who serves and who works; None for an algorithm in step, which has no server."""
    if issubclass(kind, Rule):
        return asked.division(size, replay is not None)
    for option in ("servers", "simulate", "elastic", "replay"):
        if (replay if option == "replay" else getattr(asked, option)) is not None:
            raise UsageError(
                f"--{option} is read by nobody: --algorithm {name} has no server whose calls come in an order of their own; choose "
                "downpour, easgd or gem"
            )
    return None


def check_clock(clock: Mapping[str, Any], simulate: int | None) -> None:
    """Pure: refuse settings of a simulation that nobody reads."""
    if clock and simulate is None:
        raise UsageError(f"--set simulate.{next(iter(clock))} is read by nobody without --simulate; leave it out")
    known = [entry.name for entry in fields(Clock)]
    for one in clock:
        if one not in known:
            raise unknown_name("setting of a simulation (--set simulate.NAME)", one, known)


def count_workers(kind: type[Any], size: int, asked: Asked) -> int:
    """Pure: workers that have a batch of their own in each step."""
    return asked.division(size).num_workers if issubclass(kind, Rule) else size


def rule_of(kind: type[Any], options: Any) -> Rule:
    """Pure."""
    rule: Rule = kind(options)
    return rule


def make_central(
    rule: Rule,
    name: str,
    comm: Communicator,
    division: Division,
    adapter: TorchAdapter,
    task: Task,
    make_body: Callable[[nn.Module], Body],
    make_parts: Callable[[nn.Module], Any],
    clock: Mapping[str, Any],
    replay: Sequence[str] | None,
    spans: Spans | None,
) -> Central:
    """Local: the algorithm of this rank; refuses what its rule would not read."""
    rule.read_optimizer(task.optimizer, task.optimizer_options, task.clip_norm)
    if division.elastic is not None and not division.is_virtual and find_spec("zmq") is None:
        raise UsageError("--elastic needs ZeroMQ, which is not installed here; pip install 'unisono[zmq]'")
    if replay is not None and division.elastic is None:
        check_numbers(replay, division.num_workers)
    check_model(adapter, name)
    if division.servers > 1:
        _check_servers(rule, name, division.servers, adapter, task)

    def make_look() -> TorchAdapter:
        copied = copy_of(adapter.model)
        empty = partial(_empty, adapter.device)
        return TorchAdapter(copied, make_body(copied), make_parts(copied), adapter.device, empty, None, task.precision)

    return Central(
        alone(adapter.device),
        adapter,
        rule.options,
        spans,
        name=name,
        world=comm,
        rule=rule,
        division=division,
        clock=Clock(**clock) if division.simulate is not None else Clock(0.0, 0.0, 0.0, 0.0, 0.0),
        make_look=make_look,
        replay=replay,
    )


def _empty(device: torch.device, numel: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(numel, dtype=dtype, device=device)


def _check_servers(rule: Rule, name: str, num_servers: int, adapter: TorchAdapter, task: Task) -> None:
    if rule.needs_whole or (rule.optimises_centre and task.clip_norm is not None):
        what = f"--algorithm {name}" if rule.needs_whole else f"clip_norm {task.clip_norm}"
        remedy = "use one server" if rule.needs_whole else "use one server, or leave clip_norm out"
        raise UsageError(
            f"{what} needs a norm of the whole vector, of which each of {num_servers} servers has a slice (--servers); {remedy}"
        )
    part = adapter.parts[""]
    Cut.of(next(iter(part.values.values())), num_servers)
    if rule.optimises_centre:
        part.check_narrow()
