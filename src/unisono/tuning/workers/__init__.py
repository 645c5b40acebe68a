"""The coordinator, the blocks, the worker processes, and the messages between them.

Imported by tuning/tune_job.py.
"""
