"""Training through a centre: a server that deals out the data and folds what comes back, and workers that call it."""
