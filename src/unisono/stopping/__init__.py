"""WHEN TO STOP: stop requests by signals, immediate exit on the second signal, deadlines.

Imported by api, keras, run, training and tuning; imports cluster and task.
"""
