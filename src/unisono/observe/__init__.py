"""WHO WATCHES: console, metrics.jsonl, monitor, timeline, plots, trackers. Read-only: nothing here decides anything.

Imported by run.py and the applications above; imports only events and plain values.
"""
