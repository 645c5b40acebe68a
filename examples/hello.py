"""Processes find each other and compute pi together, each from its share of the work.

    unisono run -n 4 examples/hello.py      # or: mpirun -n 4 python ..., srun -n 4 python ..., torchrun --nproc-per-node 4 ...

A grid of points lies over a square that holds a quarter of a circle: pi / 4 of the points, nearly, are in the circle.
They are counted in whole numbers, so the answer is the same to the last digit however many processes share the work,
whoever starts them and whatever carries their messages. (Who that is, `connect` says when all have found each other;
`comm.origin` holds it.)
"""

import torch

import unisono as un

POINTS = 4000  # along an edge of the square

with un.connect() as comm:
    # A point lies in the middle of its cell, at (2 i + 1) / (2 POINTS) of the edge; every size-th row of points is ours.
    places = 2 * torch.arange(POINTS, device=comm.device) + 1
    rows = places[comm.rank :: comm.size]
    inside = torch.count_nonzero(rows[:, None] ** 2 + places**2 < (2 * POINTS) ** 2)
    print(f"rank {comm.rank} of {comm.size} counts {inside.item()} points in {len(rows)} rows", flush=True)

    comm.allreduce(inside)  # the sum over all processes, in place, on each of them

    if comm.rank == 0:
        pi = 4 * inside.item() / POINTS**2
        print(f"pi is about {pi:.7f}: {inside.item()} of {POINTS**2} points are in the circle")
