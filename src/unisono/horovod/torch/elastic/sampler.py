"""What `from horovod.torch.elastic.sampler import ...` gives."""

from unisono.horovod._impl.elastic.elastic_sampler import ElasticSampler

__all__ = ["ElasticSampler"]
