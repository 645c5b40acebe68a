"""Batch-norm over all workers is refused where there are several, and plain batch-norm is told."""

from __future__ import annotations

import pytest
from torch import nn

from unisono.errors import UsageError
from unisono.training.batch_norms import accumulate_note, batch_note, effect_of_device, effect_of_workers, refuse_synchronised

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


def test_micro_batches_of_a_model_with_batch_norm_are_told() -> None:
    note = accumulate_note(PLAIN, 4)
    assert note.startswith("batch-norm (module 1.0) takes its statistics from each micro-batch (accumulate 4), so the result is an")
    assert accumulate_note(PLAIN, 1) == accumulate_note(nn.Linear(2, 2), 4) == ""


def test_what_other_workers_mean_for_the_result_follows_from_the_layers() -> None:
    dropout, recurrent = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)), nn.LSTM(2, 2, 2, dropout=0.1)
    assert effect_of_workers(PLAIN).startswith("differ, as batch-norm (module 1.0) takes its statistics")
    assert effect_of_workers(dropout) == "differ, as Dropout (module 1) draws other random numbers on other workers"
    assert effect_of_device(recurrent) == "differ, as LSTM draws other random numbers on another device"
    for same in (nn.Linear(2, 2), nn.Dropout(0.0), nn.Dropout(0.5).eval(), nn.LSTM(2, 2, 2)):
        assert effect_of_workers(same).startswith("be the same only up to rounding, unless the model itself draws random numbers")
