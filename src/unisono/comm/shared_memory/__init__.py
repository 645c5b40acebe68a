"""The parts of engine shm: shared segments, waiting, reducing in memory, messages through memory.

Imported by comm, engines/, exchange/ and ordered/; imports comm.
"""
