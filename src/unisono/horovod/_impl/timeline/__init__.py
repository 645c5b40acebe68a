"""The timeline of `HOROVOD_TIMELINE`: what becomes of each tensor, written by rank 0 as a trace for Chrome.

Imported by engine/ and job/; imports comm, engine/ and job/.
"""
