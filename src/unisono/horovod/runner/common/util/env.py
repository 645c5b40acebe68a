"""What `from horovod.runner.common.util.env import get_env_rank_and_size` gives."""

from unisono.horovod._impl.job.job_settings import get_env_rank_and_size

__all__ = ["get_env_rank_and_size"]
