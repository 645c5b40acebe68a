"""Report pages that need nothing beside themselves: the frame, tables and drawings that all reports share.

Imported by tuning; imports no other package.
"""
