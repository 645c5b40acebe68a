"""What `hvd.init()` makes of this process: its place, its settings, the process sets and their channels.

Imported by many packages; imports _impl, cluster, comm, elastic/, engine/, launch and timeline/.
"""
