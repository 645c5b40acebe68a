"""Optimizers are used without PyTorch's compiler, and it works as before where somebody wants it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import torch
from unisono.optim.without_dynamo import leave_out_dynamo

leave_out_dynamo()
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.Adam([weight])

def step():
    optimizer.zero_grad(set_to_none=False)
    (weight ** 2).sum().backward()
    optimizer.step()

optimizer.zero_grad()
optimizer.load_state_dict(optimizer.state_dict())
optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
assert "torch._dynamo" not in sys.modules
torch.compile(step, backend="eager")()
assert "torch._dynamo" in sys.modules and weight.max() < 1
leave_out_dynamo()
print("ok")
"""


def test_the_compiler_is_loaded_only_where_it_is_used() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=110)
    assert done.stdout == "ok\n", done.stderr
