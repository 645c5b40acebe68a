"""Properties of this machine: CPUs and affinity, threads, instruction sets, memory limits, ancestry of processes.

Imported by cluster, launch, doctor and whoever sets threads; reads /proc and /sys, talks to nobody.
"""
