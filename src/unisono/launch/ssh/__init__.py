"""Launchers on several hosts, started and watched over ssh.

Imported by horovod; imports cluster and launch.
"""
