"""One file for each launcher: a pure function from an environment mapping to a Topology, or to the reason why it is not that
launcher.

Imported by cluster, doctor and horovod; imports cluster.
"""
