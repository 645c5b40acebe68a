"""Communication between ranks: the Communicator, its engines, control plane, all-reduce, ordered sums and exchange.

Imported by algorithms, training and all above; imports cluster, never model or data.
"""
