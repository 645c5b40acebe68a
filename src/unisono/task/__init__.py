"""WHAT USERS WRITE: Task, task files, --set overrides, the configuration of a run.

Imported by everybody; imports only errors, loads no framework.
"""
