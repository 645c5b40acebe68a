"""WHEN TO STOP: stop requests by signals, immediate exit on the second signal, deadlines.

Imported by launch, slurm_jobs and all above; imports cluster only.
"""
