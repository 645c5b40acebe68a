"""What algorithms share whose workers agree through a server: rule, protocol, ledger, service, worker, simulation.

Imported by those algorithms and by training/server; never talks to a launcher or writes a run directory.
"""
