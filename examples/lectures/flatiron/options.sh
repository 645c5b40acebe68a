#!/bin/bash
# The useful options, on the module of the slides; the same command goes on where it was stopped.
set -e
here=$(dirname "$(readlink -f "$0")")

mpirun -np 3 unisono train "$here/example_mnist.py" \
    --algorithm downpour \
    --monitor \
    --timeline \
    --checkpoint-every 10m --out runs/mnist "$@"
