"""The parts of the shared-memory engine: memory that processes share, how they wait, how they reduce, how messages travel."""
