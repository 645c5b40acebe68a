"""The loss of `training_step`, tried with two samples: workers combine means over their samples, so another loss is noted."""

from __future__ import annotations

import warnings
from copy import deepcopy
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import nn

from unisono.data.random_streams import restored_generators
from unisono.data.tree import map_tree
from unisono.model.lightning.body import LightningBody

EACH_TWICE = (0, 1, 0, 1)
"""So there are pairs of one class, without which some losses that compare samples are 0."""


def mixes_samples(model: nn.Module, body: LightningBody, two_samples: Any) -> bool:
    """Local: whether the loss of samples together is another than the mean of the losses of each. A copy of the module computes it
    in evaluation mode, so what the module keeps, logs and counts stays as it is. False where that cannot be computed, or where the
    loss is another one at every call, as it draws random numbers."""
    tried = None
    try:
        tried, copied = deepcopy((body, model))
        copied.eval()
        with restored_generators(), tried.sanity_check(), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            each = ((0,), (1,), EACH_TWICE, EACH_TWICE)
            outcomes = [tried(copied, map_tree(itemgetter(list(rows)), two_samples), 0) for rows in each]
            first, last, together, again = (float(one.loss_sum / one.num_samples) for one in outcomes)
    except Exception:  # noqa: BLE001 - whatever a user's step raises for one sample, or in evaluation mode
        return False
    finally:
        if tried is not None:
            vars(tried).clear()  # it and the copy refer to each other, and a large copy is not to wait for the garbage collector
    dtype = next((one.dtype for one in model.parameters() if one.is_floating_point()), torch.float32)
    rounding = max(1e-4, 16 * torch.finfo(dtype).eps)

    def is_close(value: float) -> bool:
        return bool(np.isclose(value, together, rtol=rounding, atol=1e-6))

    return is_close(again) and not is_close((first + last) / 2)
