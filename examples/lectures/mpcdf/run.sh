#!/bin/bash
# The ways of the slide to start it: `bash run.sh horovodrun` (the default), srun, mpirun, mpiexec or orterun, each with two processes.
set -e
cd "$(dirname "$0")"

case "${1:-horovodrun}" in
    horovodrun) unisono horovodrun -np 2 python keras_mnist.py ;;
    srun | mpirun | mpiexec | orterun) "$1" -n 2 unisono run --horovod python keras_mnist.py ;;
    *) echo "$1 is not a launcher of the slide; take horovodrun, srun, mpirun, mpiexec or orterun" >&2; exit 2 ;;
esac
