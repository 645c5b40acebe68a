"""What `horovod.torch.elastic` gives, also as `hvd.elastic`."""

from unisono.horovod._impl.elastic.elastic_loop import run
from unisono.horovod._impl.elastic.elastic_sampler import ElasticSampler
from unisono.horovod._impl.elastic.surviving_state import ObjectState, State
from unisono.horovod._impl.torch.elastic_state import TorchState
from unisono.horovod.torch.elastic import sampler, state

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run", "sampler", "state"]
