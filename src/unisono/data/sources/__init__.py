"""One file for each kind of source: arrays, HDF5, Zarr, pictures, TIFF, NIfTI, MATLAB scenes, idx, SAT-6, digits.

Imported by data/splits.py and public as `un.HDF5`, ...; a heavy package loads when its source is opened.
"""
