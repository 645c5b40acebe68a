"""What is said about a batch that grows with the workers."""

from __future__ import annotations

from unisono.optim.scaling import growth_note


def test_the_note_says_what_a_growing_batch_does() -> None:
    note = growth_note(64, 4, 1000, 0.1)
    assert "a step uses 256 samples instead of 64, an epoch has 4 steps instead of 16, and the learning rate stays 0.1." in note
    assert "the same as --global-batch 64" in growth_note(64, 1, 1000, 0.1)
