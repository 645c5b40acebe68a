"""Stands where `import horovod` looks, for programs that `unisono run --horovod` or `unisono horovodrun` started.

The folder above this one is put in front of their PYTHONPATH. This package gives its place to `unisono.horovod` at once.
Imported by programs that say `import horovod`, never by us.
"""

import sys

try:
    from unisono.horovod._impl.launching.import_alias import install_alias
except ModuleNotFoundError as error:
    if error.name != "unisono":
        raise
    raise ModuleNotFoundError(
        f"this program needs Unisono's drop-in for Horovod, but {sys.executable} has no Unisono; install it there, or start the "
        "program with the Python that has it",
        name="unisono",
    ) from error

install_alias(__name__, __path__[0])
