"""How the processes of a job find each other, notice which are gone, and exchange small plain data.

Imported by comm, doctor, engines/, horovod, testing and tuning; imports no other package.
"""
