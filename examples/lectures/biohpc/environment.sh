#!/bin/bash
# An environment with Keras and TensorFlow for GPUs, and a kernel for Jupyter.
set -e
unisono=$(cd "$(dirname "$0")/../../.." && pwd)  # the repository
module load python/3.12-anaconda

conda create --yes --name py3.12-keras python=3.12 ipykernel pillow matplotlib
conda run --name py3.12-keras pip install "$unisono[keras]" 'tensorflow[and-cuda]'

conda run --name py3.12-keras ipython kernel install --user --name py3.12-keras --display-name="Keras (GPU)"
