"""The version of Horovod whose interface this is, for programs that ask."""

INTERFACE = "0.28.1"
"""The last release of Horovod: what programs were written against, and what their checks of the version accept."""
