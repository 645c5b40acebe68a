"""STARTING PROCESSES: starts the ranks of a node, forwards their output and signals, restarts them, leaves no process behind.

Imported by commands, tuning and the interfaces of other frameworks; imports cluster and stopping.
"""
