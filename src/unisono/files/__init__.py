"""BYTES ON DISK: atomic writes, hashes, manifests, step folders, tensor files; journals and claims that several jobs share.

Imported by many packages; imports no other package.
"""
