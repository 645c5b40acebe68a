"""A plain PyTorch loop made distributed by five lines (marked +). Everything else is as it was on one process.

unisono run -n 2 examples/own_loop.py
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import unisono as un  # +

images, labels = un.digits()
torch.manual_seed(0)

with un.connect() as comm:  # +
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(comm.device)
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = un.DistributedOptimizer(plain, model, comm)  # +
    loader = un.ShardedLoader((images[:1500], labels[:1500]), comm, global_batch=64)  # +

    for epoch in range(20):
        for pixels, digit in loader.epoch(epoch):
            optimizer.zero_grad()
            if len(pixels):  # a short last batch may have nothing for this worker
                loss = cross_entropy(model(pixels), digit)
                loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step(num_samples=len(pixels))  # +

    with torch.no_grad():
        found = model(torch.as_tensor(images[1500:], device=comm.device)).argmax(1).cpu()
    if comm.rank == 0:
        accuracy = (found == torch.as_tensor(labels[1500:])).double().mean().item()
        print(f"accuracy on the last 297 digits: {accuracy:.4f} with {comm.size} workers")
