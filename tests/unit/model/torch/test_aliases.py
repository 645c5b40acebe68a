"""Ties through memory, which moving the tensors would cut, are refused; what only lies side by side is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from unisono.errors import UsageError
from unisono.model.losses import resolve_loss
from unisono.model.torch.adapter import TorchAdapter, trainable
from unisono.model.torch.body import LossBody


class Autoencoder(nn.Module):
    def __init__(self, tie: Callable[[Autoencoder], object]) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.register_buffer("mean", torch.zeros(4))
        self.mean: Tensor
        tie(self)


def by_data(model: Autoencoder) -> None:
    model.decoder.weight.data = model.encoder.weight.data


def transposed(model: Autoencoder) -> None:
    model.decoder.weight.data = model.encoder.weight.data.t()


def frozen_copy(model: Autoencoder) -> None:
    model.decoder.weight = nn.Parameter(model.encoder.weight.detach(), requires_grad=False)


def one_row(model: Autoencoder) -> None:
    model.register_buffer("row", model.encoder.weight.detach()[1])


def one_column(model: Autoencoder) -> None:
    model.register_buffer("column", model.encoder.weight.detach()[:, 1])


def other_buffer(model: Autoencoder) -> None:
    model.register_buffer("part", model.mean[1:])


CUT: dict[Callable[[Autoencoder], None], str] = {
    by_data: "parameter encoder.weight and parameter decoder.weight",
    transposed: "parameter encoder.weight and parameter decoder.weight",
    frozen_copy: "parameter encoder.weight and parameter decoder.weight",
    one_row: "parameter encoder.weight and buffer row",
    one_column: "parameter encoder.weight and buffer column",
    other_buffer: "buffer mean and buffer part",
}


def adapter(model: nn.Module) -> TorchAdapter:
    return TorchAdapter(
        model,
        LossBody(resolve_loss("mse", {})),
        {"": trainable(model)},
        torch.device("cpu"),
        lambda numel, dtype: torch.empty(numel, dtype=dtype),
    )


@pytest.mark.parametrize("tie", CUT, ids=lambda tie: tie.__name__)
def test_a_tie_through_memory_is_refused(tie: Callable[[Autoencoder], None]) -> None:
    """In plain torch a step of one of them changes the other."""
    model = Autoencoder(tie)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    first, second = (tensors[word] for word in CUT[tie].split() if word in tensors)
    with torch.no_grad():
        first.copy_(torch.arange(first.numel()).reshape(first.shape) + 1.0)
    assert second.any() and set(second.flatten().tolist()) <= {0.0, *first.flatten().tolist()}
    with pytest.raises(UsageError) as caught:
        adapter(model)
    names = CUT[tie].split(" and ")
    assert str(caught.value).startswith((f"{names[0]} and {names[1]} share memory", f"{names[1]} and {names[0]} share memory"))
    assert "make them one parameter (decoder.weight = encoder.weight)" in str(caught.value)


def one_parameter(model: Autoencoder) -> None:
    model.decoder.weight = model.encoder.weight


def side_by_side(model: Autoencoder) -> None:
    """As cuDNN keeps the weights of a recurrent layer."""
    both = torch.zeros(18)
    model.encoder.weight.data, model.decoder.weight.data = both[:9].view(3, 3), both[9:].view(3, 3)


def columns(model: Autoencoder) -> None:
    both = torch.arange(8.0).reshape(4, 2)
    model.register_buffer("even", both[:, 0])
    model.register_buffer("odd", both[:, 1])


def counters(model: Autoencoder) -> None:
    """They stay where they are, and so does their tie."""
    model.register_buffer("positions", torch.arange(5).expand(1, -1))
    model.register_buffer("first_positions", torch.as_tensor(model.positions)[:, :3])


def both_frozen(model: Autoencoder) -> None:
    both = nn.Linear(2, 2), nn.Linear(2, 2)
    model.teacher, model.pupil = (one.requires_grad_(False) for one in both)
    both[1].weight.data = both[0].weight.data


def one_buffer_twice(model: Autoencoder) -> None:
    model.decoder.register_buffer("mean", model.mean)


def empty(model: Autoencoder) -> None:
    model.register_buffer("none", model.mean[:0])


@pytest.mark.parametrize(
    "tie",
    [one_parameter, side_by_side, columns, counters, both_frozen, one_buffer_twice, empty],
    ids=lambda tie: tie.__name__,
)
def test_what_shares_no_element_or_is_one_tensor_is_trained(tie: Callable[[Autoencoder], None]) -> None:
    adapter(Autoencoder(tie))
