"""What algorithms share whose workers agree after a number of local steps (local SGD and its family).

Imported by the algorithms of that family only.
"""
