"""What mpirun starts in the place of a rank of the fork server: it asks for one with the environment of MPI, and ends as that does.

mpi_rank.py DOOR PROGRAM...
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path


def main() -> int:
    """Local, blocking: the exit code of the rank. The rank writes where this process would, and is killed if this one is."""
    door, *program = sys.argv[1:]
    request = {
        "program": program,
        "environments": [dict(os.environ)],
        "threads": int(os.environ["OMP_NUM_THREADS"]),
        "output": f"/proc/{os.getpid()}/fd/1",
        "folder": str(Path.cwd()),
    }
    with socket.socket(socket.AF_UNIX) as keeper:
        keeper.connect(door)
        keeper.sendall(json.dumps(request).encode() + b"\n")
        with keeper.makefile() as told:
            told.readline()  # that it has begun
            return int(told.readline())


if __name__ == "__main__":
    sys.exit(main())
