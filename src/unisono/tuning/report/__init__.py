"""The report of a study: one page with pictures that needs nothing else.

Imported by tuning and commands.
"""
