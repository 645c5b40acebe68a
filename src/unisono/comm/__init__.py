"""HOW WE TALK: the Communicator, its engines, control plane, all-reduce, ordered sums and exchange.

Imported by many packages; imports cluster, files and launch.
"""
