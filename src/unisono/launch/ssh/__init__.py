"""Launchers on several hosts, started and watched over ssh.

Imported by launch and by the interfaces of other frameworks.
"""
