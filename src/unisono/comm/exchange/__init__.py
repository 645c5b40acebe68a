"""Remote calls of workers to a server, with a vector and a few numbers, over a communicator or over ZeroMQ.

Imported by algorithms/server and training/server.
"""
