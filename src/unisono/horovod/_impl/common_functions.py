"""Small functions that programs import from `horovod.common.util`. Pure or local."""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TypeVar

from unisono.horovod._impl.job import basics

__all__ = ["check_extension", "check_installed_version", "extension_available", "gpu_available", "is_iterable"]
__all__ += ["is_version_greater_equal_than", "num_rank_is_power_2", "split_list", "mpi_built", "gloo_built", "nccl_built"]
__all__ += ["ddl_built", "ccl_built"]

T = TypeVar("T")

FRAMEWORKS = ("torch", "tensorflow", "keras")
"""The names under which programs ask for a framework's extension, which are those of the packages."""


def _cache(function: Callable[..., T]) -> Callable[..., T]:
    """A decorator that remembers the results of a function by its arguments; the name is Horovod's."""
    return functools.wraps(function)(functools.cache(function))


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:  # noqa: ARG001 -- there is nothing to tell
    """Whether horovod.<name> can be used: whether the framework is installed, as nothing is compiled here. Local."""
    return ext_base_name in FRAMEWORKS and importlib.util.find_spec(ext_base_name) is not None


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Does nothing: nothing is compiled, so nothing can be missing."""


def check_installed_version(name: str, version: str, exception: Exception | None = None) -> None:
    """Does nothing: nothing is compiled for a version of a framework, so no version can be wrong."""


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:  # noqa: ARG001 -- as programs call it
    """Whether tensors may be on GPUs. Local."""
    import torch

    return torch.cuda.is_available()


def mpi_built(verbose: bool = False) -> bool:  # noqa: ARG001 -- as programs call it, here and below
    """Whether MPI could carry the tensors. Local."""
    return basics.mpi_built()


def gloo_built(verbose: bool = False) -> bool:  # noqa: ARG001
    """Whether this PyTorch has gloo. Local."""
    return basics.gloo_built()


def nccl_built(verbose: bool = False) -> int:  # noqa: ARG001
    """Returns 0: tensors of GPUs pass through the host. Local."""
    return basics.nccl_built()


def ddl_built(verbose: bool = False) -> bool:  # noqa: ARG001
    """Returns False: there is no DDL here. Local."""
    return basics.ddl_built()


def ccl_built(verbose: bool = False) -> bool:  # noqa: ARG001
    """Returns False: there is no oneCCL here. Local."""
    return basics.ccl_built()


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether a number of ranks is a power of two; False for 0. Pure."""
    return num_rank > 0 and not num_rank & (num_rank - 1)


def split_list(l: Sequence[T], n: int) -> list[list[T]]:  # noqa: E741 -- as programs name it
    """Splits a list into n parts, whose lengths differ by one at most; the first are the longer ones."""
    each, more = divmod(len(l), n)
    bounds = [part * each + min(part, more) for part in range(n + 1)]
    return [list(l[begin:end]) for begin, end in pairwise(bounds)]


def is_iterable(x: object) -> bool:
    """Whether a value can be iterated over. Pure."""
    return isinstance(x, Iterable)


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether version `ver` is `target` ("1.2.3") or later."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", target):
        raise ValueError(f'target must be a version like "1.2.3"; received {target!r}')
    return _version_numbers(ver) >= _version_numbers(target)


def _version_numbers(version: str) -> tuple[int, ...]:
    """Returns the first three numbers of a version, with zeros for those that are missing."""
    found = re.findall(r"\d+", version.split("+")[0])[:3]
    return tuple(int(part) for part in (*found, 0, 0, 0)[:3])
