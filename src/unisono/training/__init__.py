"""GO ROUND: the training loop, metrics, the run directory."""
