"""Training through a server: its loop, background evaluation, workers that join.

Imported by run.py and training/prepare.py.
"""
