"""SlowMo: rounds of local SGD, and a slow momentum over the rounds.

    H times, on worker i:   w_i <- optimiser_i(w_i, g_i)                    as in local_sgd.py; w_i begins as W
    then, on all:           W'   = (sum over workers j of w_j) / N
                            u   <- slow_momentum u + (W - W') / lr          lr: the learning rate of the round's last step
                            W   <- W - slow_lr lr u,   w_i <- W

Wang, Tantia, Ballas, Rabbat 2020, SlowMo: Improving Communication-Efficient Distributed SGD with Slow Momentum, ICLR.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from unisono.algorithms.base import Examples, Settings
from unisono.algorithms.local_sgd import LocalSGD
from unisono.algorithms.local_sgd import Options as LocalSGDOptions
from unisono.task.options import option


@dataclass(frozen=True)
class Options(LocalSGDOptions):
    """Options of `--algorithm slowmo`."""

    slow_lr: float = option(1.0, "factor of the slow step", above=0)
    slow_momentum: float = option(0.7, "momentum of the slow steps (beta)", least=0, below=1)


@dataclass
class SlowMo(LocalSGD):
    """See the top of this file."""

    Options: ClassVar[type[Any]] = Options
    examples: ClassVar[Examples] = (
        {"algorithm.period": 3, "algorithm.slow_momentum": 0.5, "optimizer.momentum": 0.5},
        {"algorithm.period": 3, "algorithm.slow_momentum": 0},
    )

    @classmethod
    def equals_plain_training(cls, options: Any) -> bool:
        return bool((options.slow_lr, options.slow_momentum, options.momentum) == (1, 0, "keep"))

    def prepare(self) -> None:
        super().prepare()
        self._common = [weights.clone() for weights in self.weights]
        self._momentum = [torch.zeros_like(weights) for weights in self.weights]
        self.kept = {"slow_weights": self._common, "slow_momentum": self._momentum}

    def update_weights(self, settings: Settings) -> None:
        super().update_weights(settings)  # to W', the mean
        lrs = self.learning_rates(settings)
        for weights, common, momentum, lr in zip(self.weights, self._common, self._momentum, lrs, strict=True):
            if lr:  # at 0 the round ends with the mean, and the momentum stays
                momentum.mul_(self.options.slow_momentum).add_((common - weights) / lr)
                weights.copy_(common - self.options.slow_lr * lr * momentum)
            common.copy_(weights)


ALGORITHM = SlowMo
