"""Two workers without a launcher: each process reads in TF_CONFIG where all of them listen and which one it is.

    python examples/lectures/cscs/tf_config.py [PORT PORT ...]          # a worker for each; two by default

Starts `strategies.py` on this machine, once for each port. On two machines set the variable in a shell on each, with the names
of the machines in the list of workers and 0 or 1 as index, and start the script there by hand. Under SLURM, MPI or `unisono
run` nobody needs TF_CONFIG.

Older practice: the script set the variable itself, before it made the strategy, and so was another file on every machine.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

PROGRAM = Path(__file__).with_name("strategies.py")


def main(ports: Sequence[int]) -> int:
    cluster = {"worker": [f"localhost:{port}" for port in ports]}
    threads = str(max(1, (os.cpu_count() or 1) // len(ports)))  # the workers share this machine
    workers = []
    for index in range(len(ports)):
        told = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
        workers.append(
            subprocess.Popen([sys.executable, PROGRAM], env={**os.environ, "OMP_NUM_THREADS": threads, "TF_CONFIG": told})
        )
    try:
        # A worker that fails leaves the others waiting; so the first failure ends all.
        while not any(codes := [worker.poll() for worker in workers]) and None in codes:
            time.sleep(0.1)
    finally:
        for worker in workers:
            worker.terminate()
            worker.wait()
    return next((abs(code) for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main([int(port) for port in sys.argv[1:]] or [8888, 8889]))
