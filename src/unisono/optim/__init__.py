"""HOW FAR TO MOVE: optimisers by name, schedules."""
