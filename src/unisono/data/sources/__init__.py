"""One file for each kind of source, public as `un.HDF5`, ...; a heavy package loads when its source is opened.

Imported by data, keras, own_loop, predict and unisono; imports data.
"""
