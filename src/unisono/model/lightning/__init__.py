"""A LightningModule as the body of a replica: its steps, hooks and logged values, without a Trainer.

Imported by training; imports model and torch/.
"""
