#!/bin/bash
# One coordinator and two blocks of six processes: one master, five workers. In the folder of the .h5 files.
set -e
here=$(dirname "$(readlink -f "$0")")

mpirun -np 13 unisono tune "$here/example_mnist.py" \
    --algorithm downpour \
    --workers 6 --global-batch 125 \
    --trials 10 \
    --folds 2 \
    --epochs 5 "$@"
