"""WHO AM I: rank and world size by the variables of launchers, rendezvous, GPUs, and this machine.

Imported by everything that needs to know its place; imports only task, files and errors.
"""
