#!/bin/bash
# An environment with Keras and TensorFlow, and a kernel for Jupyter.
set -e
module load python/3.12-anaconda

conda create --yes --name py3.12-keras python=3.12 ipykernel pillow matplotlib
conda run --name py3.12-keras pip install 'unisono[tensorflow]'

conda run --name py3.12-keras ipython kernel install --user --name py3.12-keras --display-name="Keras (GPU)"
