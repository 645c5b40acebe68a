"""BYTES ON DISK: atomic writes, hashes, manifests, step folders, tensor files; journals and claims that several jobs share.

Imported by algorithms, comm, commands, keras, observe, predict, training and tuning; imports no other package.
"""
