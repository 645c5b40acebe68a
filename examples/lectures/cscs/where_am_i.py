"""Which worker is this process, of how many, with which GPUs: what a cluster resolver answers, under any launcher.

    srun -n 2 python examples/lectures/cscs/where_am_i.py
    unisono run -n 2 examples/lectures/cscs/where_am_i.py          # or mpirun, torchrun, TF_CONFIG, or python alone

Only to look: strategies and trainings find their place by themselves, so `unisono` has no public name for this.

Older practice: a resolver for SLURM alone, given to the strategy, with a port, the RPC layer and whether it chooses the GPU.
Here the launcher is found; a process always has its own GPU; what the launcher does not tell may be given to `Overrides`.
"""

from unisono.cluster.resolve import current_topology
from unisono.cluster.topology import Overrides

PORT = 8888  # the first that is tried

here = current_topology(Overrides(port=PORT))
print(
    f"worker {here.global_rank} of {here.world_size}, {here.local_rank} of {here.local_size} on its node, "
    f"started by {here.launcher}; GPUs: {', '.join(here.own_gpus) or 'none'}"
)
