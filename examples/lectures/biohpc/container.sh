#!/bin/bash
# A container is not needed, as nothing is compiled: `pip install unisono` is enough. Where a site wants one, any image with Python will do.
set -e
module load singularity/3.0.2
singularity pull python_3.12.sif docker://python:3.12

# Packages lie outside the image, in a folder that all nodes see.
singularity exec python_3.12.sif pip install --target "$PWD/packages" 'unisono[tensorflow]'
export SINGULARITYENV_PYTHONPATH=$PWD/packages

singularity exec python_3.12.sif python -m unisono doctor
