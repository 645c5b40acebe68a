"""What a worker of a verb loads stays, and is left alone by the garbage collector."""

from __future__ import annotations

import gc
import subprocess
import sys

from unisono.launch.lasting_import import import_to_stay

LOADS = """
import gc
from unisono.launch.lasting_import import import_to_stay
import_to_stay("torch")
torch_alone = gc.get_freeze_count()
assert torch_alone > 50_000, torch_alone
assert gc.isenabled()
import_to_stay("unisono.run")
assert gc.get_freeze_count() <= torch_alone, "what came later may be the user's"
"""


def test_the_garbage_collector_leaves_alone_what_a_worker_loads() -> None:
    done = subprocess.run([sys.executable, "-c", LOADS], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


def test_objects_of_a_program_that_calls_a_verb_are_collected_as_ever() -> None:
    import torch

    before = gc.get_freeze_count()
    import_to_stay("unisono.run")
    assert torch.__name__ in sys.modules and gc.get_freeze_count() == before
