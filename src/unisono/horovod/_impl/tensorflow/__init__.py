"""Horovod's interface for TensorFlow.

Most of its modules import TensorFlow when they are imported, as it is their subject.

Imported by horovod and keras/; imports _impl, elastic/, engine/, job/, keras/, launching/ and torch/.
"""
