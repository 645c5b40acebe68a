"""How the processes of a job find each other, notice who is gone, and exchange small plain data.

Imported by the engines and by everything that needs messages between processes outside of collectives.
"""
