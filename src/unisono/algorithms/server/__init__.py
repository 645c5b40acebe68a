"""What algorithms share whose workers agree through a server: rule, protocol, ledger, service, worker, simulation.

Imported by algorithms and training; imports algorithms, comm, data, files, model and task.
"""
