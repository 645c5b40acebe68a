"""What `horovodrun --check-build` prints: which frameworks and carriers there are. Nothing of them is loaded."""

from __future__ import annotations

import importlib.util

from unisono.horovod._impl.job.process_topology import mpi_is_installed


def build_report(ours: str, interface: str) -> str:
    """Returns the text in the same blocks as Horovod prints, so that scripts which look for `[X] PyTorch` find it. Local."""
    has_torch = _is_installed("torch")
    blocks = (
        (
            "Available Frameworks",
            (
                ("TensorFlow", _is_installed("tensorflow")),
                ("PyTorch", has_torch),
                ("Keras", _is_installed("keras")),
                ("MXNet", False),
            ),
        ),
        ("Available Controllers", (("MPI", mpi_is_installed()), ("Gloo", has_torch))),
        (
            "Available Tensor Operations",
            (
                ("NCCL", False),
                ("DDL", False),
                ("CCL", False),
                ("MPI", mpi_is_installed()),
                ("Gloo", has_torch),
                ("Shared memory", True),
            ),
        ),
    )
    lines = [f"Unisono {ours}, with the interface of Horovod v{interface}:"]
    for title, entries in blocks:
        lines += ["", f"{title}:", *(f"    [{'X' if there else ' '}] {name}" for name, there in entries)]
    return "\n".join(lines)


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
