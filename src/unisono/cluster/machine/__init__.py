"""Properties of this machine: CPUs and affinity, threads, instruction sets, memory limits, ancestry of processes.

Imported by many packages; imports cluster.
"""
