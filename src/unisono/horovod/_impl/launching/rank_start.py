"""How ranks of a program written for Horovod start: `launch` starts them, or a process of another launcher becomes one."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from unisono.cluster.resolve import environment, resolve
from unisono.errors import UsageError
from unisono.horovod._impl.launching.import_alias import refuse_a_real_one, stand_in_folder
from unisono.horovod._impl.launching.rank_variables import HorovodStart, RankPosition, horovod_variables, position_on_node
from unisono.launch.launch import LaunchConfig
from unisono.launch.program import command
from unisono.launch.rank_env import inherited, refuse_inside_launched_process

LET_IT_START = "let that launcher start `unisono run --horovod program`, without -n"


def horovod_start(program: Sequence[str], variables: tuple[tuple[str, str], ...] = ()) -> HorovodStart:
    """Returns what the ranks need. Raises `UsageError` if their Python has a real Horovod; where it is another Python than ours,
    the ranks find out when they import it, unless it lies in the folder that comes before ours. Local."""
    arguments = command(program)
    python = Path(arguments[0])
    is_python = python.name.startswith("python")
    # What a shell or a wrapper starts may well look into the current folder first.
    first = str(first_folder(arguments[1:]) if is_python else Path.cwd())
    if is_python and python.parent == Path(sys.executable).parent:
        refuse_a_real_one([first, *sys.path[1:]], sys.meta_path)
    else:
        refuse_a_real_one([first])
    return HorovodStart(stand_in_folder(), variables)


def first_folder(words: Sequence[str]) -> Path:
    """Returns the folder where Python, called with these words, looks first for modules: that of its script, or else the current
    one. Local."""
    left = iter(words)
    for word in left:
        if word == "-" or not word.startswith("-"):
            script = Path(word).resolve()
            return Path.cwd() if word == "-" else script if script.is_dir() else script.parent
        if word.startswith("--"):
            if word == "--check-hash-based-pycs":
                next(left, None)
            continue
        # Letters stand together (-um pytest), and what follows one that takes a value is that value.
        position = next((position for position, letter in enumerate(word) if letter in "cmWX"), None)
        if position is not None and word[position] in "cm":
            return Path.cwd()
        if position == len(word) - 1:
            next(left, None)
    return Path.cwd()


def with_horovod(config: LaunchConfig, start: HorovodStart, env: Mapping[str, str]) -> LaunchConfig:
    """Returns the launch configuration for a program written for Horovod. Such programs choose their GPU themselves, by local rank,
    among all of the node. Local."""
    if config.num_nodes == 1:
        refuse_inside_launched_process(env, config.num_local, LET_IT_START)
    base = {**env, **({} if config.engine is None else {"UNISONO_ENGINE": config.engine})}
    counts = config.num_on_nodes or (config.num_local,) * config.num_nodes
    places = (position_on_node(counts, config.node_rank, local_rank) for local_rank in range(config.num_local))
    return replace(config, gpus="all", rank_variables=tuple(horovod_variables(base, start, position) for position in places))


def be_rank(program: Sequence[str], start: HorovodStart, options: Sequence[tuple[str, str]]) -> NoReturn:
    """Turns this process, which srun, mpirun or torchrun started as one of several, into a rank of the program; `options` are
    variables for it. Local."""
    base = {**inherited(environment()), **dict(options)}
    at = resolve(base)
    if at.launcher == "local":
        raise UsageError(
            "the number of processes is missing; write unisono run --horovod -n 4 program, or start several with srun, mpirun or "
            "torchrun: mpirun -n 4 unisono run --horovod program"
        )
    even = at.node_rank is not None and at.num_nodes is not None and at.num_nodes * at.local_size == at.world_size
    cross = (at.node_rank or 0, at.num_nodes or 1) if even else (0, 1) if at.one_node else None
    position = RankPosition(at.global_rank, at.world_size, at.local_rank, at.local_size, cross)
    become(command(program), {**base, **horovod_variables(base, start, position)})


def become(arguments: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Runs another program in place of this one; its signals and exit code are then its own. Local."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    try:
        os.execvpe(arguments[0], list(arguments), dict(env))
    except OSError as error:
        raise UsageError(f"{arguments[0]} cannot be started: {error.strerror}; check that it is on PATH and executable") from error
