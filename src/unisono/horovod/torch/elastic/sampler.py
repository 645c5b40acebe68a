"""What `from horovod.torch.elastic.sampler import ...` gives."""

from unisono.compat.horovod.elastic.sampler import ElasticSampler

__all__ = ["ElasticSampler"]
