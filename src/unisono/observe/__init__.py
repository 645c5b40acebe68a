"""WHO WATCHES: console, metrics.jsonl, monitor, timeline, plots, trackers. Read-only: nothing here decides anything.

Imported by commands, predict, run and tuning; imports comm, files and task.
"""
