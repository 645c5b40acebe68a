"""A program written for Horovod; its first rank writes losses and a hash of the weights into horovod.json."""

import hashlib
import json
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import unisono as un

hvd.init()
images, labels = (torch.as_tensor(one) for one in un.digits())
torch.manual_seed(hvd.rank())
model = nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))
optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
losses = []
for step in range(20):
    rows = torch.arange(24) + 24 * (hvd.size() * step + hvd.rank())
    optimizer.zero_grad()
    loss = cross_entropy(model(images[rows]), labels[rows])
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    losses.append(float(hvd.allreduce(loss.detach(), name="loss")))
if hvd.rank() == 0:
    weights = b"".join(one.numpy().tobytes() for one in model.state_dict().values())
    found = {"losses": losses, "weights_sha256": hashlib.sha256(weights).hexdigest()}
    Path("horovod.json").write_text(json.dumps(found))
