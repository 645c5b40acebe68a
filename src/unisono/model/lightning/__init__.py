"""A LightningModule as the body of a replica: its steps, hooks and logged values, without a Trainer.

Imported by training/frontends and metrics.
"""
