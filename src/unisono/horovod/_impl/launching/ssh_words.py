"""What all ways over ssh share: the options of ssh, and the variables that are forwarded. Pure."""

from __future__ import annotations

import re

from unisono.cluster.launchers.unisono_run import PLACE
from unisono.horovod._impl.elastic.worker_environment import ELASTIC

OPTIONS = (
    *("-o", "BatchMode=yes"),
    *("-o", "ConnectTimeout=30"),  # a host that does not answer at all would be waited for as long as the kernel tries
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),  # a host that vanished must end its ssh, or all would wait
)
"""Whether a host whose key is not known is trusted, the user's own settings of ssh say."""

CARRIED = re.compile(
    r"PATH|LD_LIBRARY_PATH|PYTHON.*|VIRTUAL_ENV|CONDA_(PREFIX|DEFAULT_ENV)|LANG|LC_.*|(OMP|MKL|OPENBLAS|NUMEXPR)_.*"
    r"|(HOROVOD|UNISONO|NCCL|GLOO|CUDA|KERAS|XLA|TORCH|JAX)_.*|TF_(?!VAR_).*"
)
"""Variables that go along to other hosts. Not all of them (TF_VAR_ is Terraform's)."""
SECRET = re.compile(r".*(TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY).*", re.IGNORECASE)
"""Those that do not stand on a command line, which everybody there sees."""


def is_forwarded(name: str) -> bool:
    """Whether a variable is forwarded to other hosts. The rank of a process and the secrets of a job are not: what is started there
    is another job."""
    return CARRIED.fullmatch(name) is not None and SECRET.fullmatch(name) is None and name not in (*PLACE, *ELASTIC)


def ssh_words(host: str, port: int | None, key: str | None) -> tuple[str, ...]:
    """Returns the words of the ssh command before the remote command."""
    return (
        "ssh",
        *OPTIONS,
        *(() if port is None else ("-p", str(port))),
        *(() if key is None else ("-i", key)),
        host,
    )
