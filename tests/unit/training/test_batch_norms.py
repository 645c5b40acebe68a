"""Batch-norm over all workers is refused where there are several, and plain batch-norm is told."""

from __future__ import annotations

import pytest
from torch import nn

from unisono.errors import UsageError
from unisono.training.batch_norms import batch_note, refuse_synchronised

PLAIN = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.BatchNorm1d(2)))
SYNCHRONISED = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.SyncBatchNorm(2)))


def test_synchronised_batch_norm_needs_one_worker() -> None:
    told = r"module 1\.0 is a SyncBatchNorm, but statistics over all of the 2 workers are not available yet, .* or one worker"
    with pytest.raises(UsageError, match=told):
        refuse_synchronised(SYNCHRONISED, 2, in_shards=False)
    with pytest.raises(UsageError, match="the model is a SyncBatchNorm"):
        refuse_synchronised(nn.SyncBatchNorm(2), 2, in_shards=False)
    refuse_synchronised(SYNCHRONISED, 1, in_shards=False)
    refuse_synchronised(PLAIN, 2, in_shards=False)


def test_synchronised_batch_norm_is_refused_in_shards() -> None:
    with pytest.raises(UsageError, match=r"module 1\.0 is a SyncBatchNorm, which mixes the samples of the shards") as told:
        refuse_synchronised(SYNCHRONISED, 1, in_shards=True)
    assert "leave --shards out" not in str(told.value), "that would lead to statistics of each worker"
    refuse_synchronised(PLAIN, 1, in_shards=True)


def test_plain_batch_norm_on_several_workers_is_told() -> None:
    note = batch_note(PLAIN, 2, in_shards=False, can_shard=True)
    assert note.startswith("batch-norm (module 1.0) takes its statistics from the samples of each worker, so the result depends")
    assert "--shards" in note and "--shards" not in batch_note(PLAIN, 2, in_shards=False, can_shard=False)
    assert batch_note(PLAIN, 1, in_shards=False, can_shard=True) == ""
    assert batch_note(PLAIN, 2, in_shards=True, can_shard=True) == ""
    assert batch_note(nn.Linear(2, 2), 2, in_shards=False, can_shard=True) == ""
    frozen = nn.Sequential(nn.BatchNorm1d(2).eval())
    assert batch_note(frozen, 2, in_shards=False, can_shard=True) == "", "it uses the statistics that it has"
