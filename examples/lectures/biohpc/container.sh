#!/bin/bash
# A container is not needed, as nothing is compiled. Where a site wants one, any image with Python will do; --nv shows it the GPUs.
set -e
unisono=$(cd "$(dirname "$0")/../../.." && pwd)  # the repository
module load singularity/3.0.2
singularity pull python_3.12.sif docker://python:3.12

# Packages lie outside the image, in a folder that all nodes see.
singularity exec --bind "$unisono" python_3.12.sif pip install --target "$PWD/packages" "$unisono[keras]" 'tensorflow[and-cuda]'
export SINGULARITYENV_PYTHONPATH=$PWD/packages

singularity exec --nv python_3.12.sif python -m unisono doctor
