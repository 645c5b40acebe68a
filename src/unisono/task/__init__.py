"""WHAT USERS WRITE: Task, task files, --set overrides, the configuration of a run. It loads no framework.

Imported by many packages; imports no other package.
"""
