#!/bin/bash
# One master and two workers, in the folder of the .h5 files and lists.
set -e
here=$(dirname "$(readlink -f "$0")")

mpirun -np 3 unisono train "$here/cifar10.py" \
    --algorithm downpour \
    --set data.train=train_cifar10.list \
    --set data.val=test_cifar10.list \
    --epochs 5 "$@"
