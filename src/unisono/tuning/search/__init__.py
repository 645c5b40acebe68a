"""The search: the space, samplers and pruners, prefetched proposals, the queue of trials.

Imported by tuning; the only place that loads Optuna for a search.
"""
