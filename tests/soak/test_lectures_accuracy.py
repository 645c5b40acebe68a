"""examples/lectures/mpcdf/keras_mnist.py with two workers, with every backend of Keras: after the best of its six epochs it knows
at least 99 % of the real test images. The best is chosen on the same images, as the script shows them after each epoch and has no
others; so the number is a little too good, and shows that the script learns, not how well it would do on new images."""

from __future__ import annotations

from pathlib import Path

import pytest

import unisono as un
from bench.horovod_programs import BACKENDS, LIMIT_S, lectures, run

GOAL = 0.99


@pytest.mark.soak
@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("backend", BACKENDS)
def test_keras_mnist(tmp_path: Path, backend: str) -> None:
    try:
        folder = un.locate("mnist")
    except un.UsageError as error:
        pytest.skip(str(error))
    (case,) = lectures(folder, [backend])
    done = run(case, tmp_path)
    assert done["code"] == 0, "\n".join(done["last_lines"])
    epochs = [float(found) for found in done["found"] if not found.startswith("Test")]
    print(f"{backend}: {done['found']} in {done['seconds']:.0f} s")
    # The script sets no seed, and its last epoch lies at about 99.1 %: too near to ask for 99 % each time.
    assert len(done["found"]) > len(epochs) and max(epochs) >= GOAL, "\n".join(done["last_lines"])
