"""What each verb of the command does, one file each; a verb is loaded when it is used.

Imported by cli; imports many packages.
"""
