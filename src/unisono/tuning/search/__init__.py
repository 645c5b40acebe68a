"""The search: the space, samplers and pruners, prefetched proposals, the queue of trials.

Imported by study/, tuning and workers/; imports algorithms, model, optim, study/ and task.
"""
