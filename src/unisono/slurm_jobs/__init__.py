"""CHAINS OF SLURM JOBS: sbatch files, the queue, the site file, the log of a chain.

Imported by commands; imports launch, stopping and cluster.
"""
