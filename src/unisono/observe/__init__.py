"""WHO WATCHES: what a run shows and records. Read-only: nothing here decides anything."""
