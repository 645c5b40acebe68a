"""What `hvd.init()` makes of this process: its place, its settings, the process sets and their channels.

Imported by the fronts, elastic/ and launching/.
"""
