"""The torch and the Keras form of JEDI-net beside each other, Keras on torch: prints what the test wants to know, as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch

from unisono.task.task_file import load_task

NAMES = {
    "as_receiver": "as_receiver",
    "as_sender": "as_sender",
    "effect.1": "effect_2",
    "effect.3": "effect_3",
    **{f"{part}.{2 * number}": f"{part}_{number + 1}" for part in ("particle", "jet") for number in range(3)},
}
"""From the layers of the one to those of the other."""


def largest_difference(torch_model: Any, keras_model: Any, jets: np.ndarray[Any, Any]) -> float:
    """Of scores, when both have the weights of the first."""
    for name, twin in NAMES.items():
        layer = torch_model.get_submodule(name)
        values = [layer.weight.T, *([] if layer.bias is None else [layer.bias])]
        keras_model.get_layer(twin).set_weights([value.detach().numpy() for value in values])
    with torch.no_grad():
        return float(np.abs(torch_model(torch.as_tensor(jets)).numpy() - keras_model.predict_on_batch(jets)).max())


def main(in_torch: str, in_keras: str) -> None:
    make, twin = load_task(in_torch).model, load_task(in_keras).model
    torch.manual_seed(0)
    jets = np.random.default_rng(0).standard_normal((3, 7, 16), dtype=np.float32)
    differences = [largest_difference(make(7, summed=summed), twin(7, summed=summed), jets) for summed in (False, True)]
    published = twin(particles=100)
    print(json.dumps({"parameters": published.count_params(), "built": published.built, "differences": differences}))


main(*sys.argv[1:])
