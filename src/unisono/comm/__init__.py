"""HOW WE TALK: groups of processes that move tensors."""
