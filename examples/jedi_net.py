"""JEDI-net, the interaction network that tells jets apart (Moreno et al. 2019, arXiv:1908.05318), in PyTorch.

    unisono train examples/jedi_net.py -n 2                                                         # 16 particles, about a minute
    unisono train examples/jedi_net.py -n 2 --set model.particles=100 --set data.particles=100      # the published size
    unisono train examples/jedi_net.py -n 8 --set model.particles=100 --set data.particles=100 \\
        --set data.kind=hdf5 --set data.path='train/*.h5'                                           # real jets

Every particle r of a jet receives an effect from every other particle s; its effects are summed; it gives an output; and
the outputs of all particles, one after the other or summed, give the scores of the five classes:

    e_r = sum over s != r of f_R(x_r, x_s)        o_r = f_O(x_r, e_r)        scores = phi_C(o_1, ..., o_N) or phi_C(o_1 + ... + o_N)

Each of the three functions is a perceptron with `hidden` and `hidden // 2` neurons. The published model has 33,625 parameters and
takes 116 MFLOP for a jet. That is 100 particles, hidden 30, 10 effects, 10 outputs, not summed, ELU: the defaults here but for the
number of particles. (With 30, 50, 100 or 150 particles, 4 to 128 hidden neurons, up to 64 effects and outputs, summed or not, there
are twelve models of 33,625 parameters, and this is the only one near 116 MFLOP.)

Of these, 83 MFLOP are products with matrices of zeros and ones, which pick the two particles of each of the 9,900 edges and sum the
effects, and 19 are the first layer of f_R. Neither is needed. Particles are paired by broadcasting; and as the first layer is
linear, W (x_r, x_s) = W_r x_r + W_s x_s, it is applied to particles before they are paired. The same scores then take 12.6 MFLOP.
(Products of matrices alone, one multiplication and one addition being two operations, are 114.4 MFLOP there and 12.6 here.)
"""

from typing import Annotated

import torch
from jets import CLASSES, NUM_FEATURES, data  # type: ignore[import-not-found]  # stands beside this file
from torch import Tensor, nn

import unisono as un


class JediNet(nn.Module):
    """From jets (batch, particles, features) to scores (batch, classes)."""

    def __init__(self, particles: int, hidden: int, effects: int, outputs: int, summed: bool) -> None:
        super().__init__()
        self.summed = summed
        self.as_receiver = nn.Linear(NUM_FEATURES, hidden)  # with `as_sender` the first layer of f_R
        self.as_sender = nn.Linear(NUM_FEATURES, hidden, bias=False)
        self.effect = nn.Sequential(nn.ELU(), *after_first(hidden, effects), nn.ELU())
        self.particle = nn.Sequential(nn.Linear(NUM_FEATURES + effects, hidden), nn.ELU(), *after_first(hidden, outputs), nn.ELU())
        self.jet = nn.Sequential(
            nn.Linear(outputs if summed else particles * outputs, hidden), nn.ELU(), *after_first(hidden, len(CLASSES))
        )

    def forward(self, jets: Tensor) -> Tensor:
        receiver, sender = self.as_receiver(jets), self.as_sender(jets)
        on_itself = self.effect(receiver + sender)  # one in each sum over all particles, and cheaper to take away than to leave out
        effects = self.effect(receiver[:, :, None] + sender[:, None]).sum(2) - on_itself
        outputs = self.particle(torch.cat([jets, effects], 2))
        scores: Tensor = self.jet(outputs.sum(1) if self.summed else outputs.flatten(1))
        return scores


def after_first(hidden: int, out: int) -> tuple[nn.Module, ...]:
    return nn.Linear(hidden, hidden // 2), nn.ELU(), nn.Linear(hidden // 2, out)


def model(
    particles: int = 16,
    hidden: Annotated[int, un.Range(10, 100)] = 30,
    effects: Annotated[int, un.Range(4, 32)] = 10,
    outputs: Annotated[int, un.Range(4, 32)] = 10,
    summed: bool = False,
) -> nn.Module:
    """`effects` and `outputs` are D_E and D_O of the paper."""
    return JediNet(particles, hidden, effects, outputs, summed)


task = un.Task(
    model=model,
    data=data,
    loss="cross_entropy",
    metrics=("accuracy",),
    optimizer="adam",
    lr=0.01,
    schedule="one_cycle",
    global_batch=128,
    epochs=12,
)
