"""The effect on a training of a global batch that grows with the number of workers. Pure."""

from __future__ import annotations


def growth_note(local_batch: int, num_workers: int, num_samples: int, lr: float) -> str:
    """Pure: returns a sentence for the log on the steps per epoch and the learning rate of such a training."""
    batch = local_batch * num_workers
    alone, together = -(-num_samples // local_batch), -(-num_samples // batch)
    if num_workers == 1:
        return f"--local-batch {local_batch} on one worker is the same as --global-batch {local_batch}."
    return (
        f"--local-batch {local_batch} on {num_workers} workers: a step uses {batch} samples instead of {local_batch}, an epoch has "
        f"{together} steps instead of {alone}, and the learning rate stays {lr:g}. The result depends on the number of workers; "
        f"with --global-batch it does not."
    )
