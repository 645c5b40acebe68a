"""JOBS THAT FOLLOW EACH OTHER: sbatch files, the queue, the site file, the log of a chain.

Imported by commands; imports task.
"""
