# Not names that programs need: strategies find their place by themselves. So `unisono` itself does not have them.
from unisono.cluster.resolve import current_topology
from unisono.cluster.topology import Overrides

at = current_topology(Overrides(
    port=8888,
    jobs=None, gpus_per_node=None, gpus_per_task=None,
    tasks_per_node=None
))

print(f'worker {at.global_rank} of {at.world_size}, {at.local_rank} of {at.local_size} on its node; GPUs: {", ".join(at.gpus) or "none"}')
