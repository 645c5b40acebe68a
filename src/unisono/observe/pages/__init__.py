"""Report pages that need nothing beside themselves: the frame, tables and drawings that all reports share.

Imported by the reports of runs, studies and measurements; it knows none of them.
"""
