"""The report of a study: one page with pictures that needs nothing else.

Imported by commands and tuning; imports files, observe and study/.
"""
