"""The parts of engine shm: shared segments, waiting, reducing in memory, messages through memory.

Imported by comm/engines/shm.py, and comm/exchange for its slots.
"""
