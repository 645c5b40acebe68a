"""WHAT I HOLD: one replica of a model, shown to the rest as flat vectors."""
