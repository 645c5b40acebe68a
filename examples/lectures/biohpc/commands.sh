#!/bin/bash
# The two commands of the slides: one worker, then two with Horovod.
set -e
cd "$(dirname "$0")"

python my_dl_model.py --model resnet50 --batch-size 128
unisono horovodrun -np 2 python my_dl_model_horovod.py --model resnet50 --batch-size 128
