"""WHO AM I: rank and world size by the variables of launchers, rendezvous, GPUs, and this machine.

Imported by many packages; imports no other package.
"""
