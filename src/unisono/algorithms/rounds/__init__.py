"""What algorithms share that agree after some steps only. It is none itself: users type the names of the files beside base.py."""
