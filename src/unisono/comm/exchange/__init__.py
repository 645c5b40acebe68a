"""Remote calls of workers to a server, with a vector and a few numbers, over a communicator or over ZeroMQ.

Imported by algorithms, testing and training; imports comm, engines/, files and shared_memory/.
"""
