"""What algorithms share whose workers agree after a number of local steps (local SGD and its family).

Imported by algorithms; imports algorithms, comm and model.
"""
