"""Which agreements are carried out together, so that many small tensors are sent as one. Pure, so that all ranks decide alike."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from unisono.horovod._impl.engine.agreed_operation import Agreement


def fuse(agreements: Iterable[Agreement], threshold_bytes: int) -> list[list[Agreement]]:
    """Returns the agreements in buckets of one kind, each of at most `threshold_bytes` or of one agreement, in the order of their
    first members."""
    buckets: list[list[Agreement]] = []
    open_ones: dict[Hashable, tuple[list[Agreement], int]] = {}
    for agreement in agreements:
        key = agreement.fusion_key
        bucket, num_bytes = open_ones.get(key, ([], 0))
        num_bytes += agreement.num_bytes
        if key is None or not bucket or num_bytes > threshold_bytes:
            bucket, num_bytes = [agreement], agreement.num_bytes
            buckets.append(bucket)
        else:
            bucket.append(agreement)
        open_ones[key] = bucket, num_bytes
    return buckets
