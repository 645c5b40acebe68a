"""WHAT I HOLD: one replica shown to the rest as flat vectors (base, flat, tail); torch/, lightning/, keras/, losses/.

Imported by many packages; imports launch.
"""
