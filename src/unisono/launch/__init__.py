"""STARTING PROCESSES: starts the ranks of a node, forwards their output and signals, restarts them, leaves no process behind.

Imported by many packages; imports cluster and task.
"""
