"""What `horovod.torch.elastic` gives, also as `hvd.elastic`."""

from unisono.compat.horovod.elastic.loop import run
from unisono.compat.horovod.elastic.sampler import ElasticSampler
from unisono.compat.horovod.elastic.state import ObjectState, State
from unisono.compat.horovod.elastic.torch_state import TorchState
from unisono.horovod.torch.elastic import sampler, state

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run", "sampler", "state"]
