"""HOW WE AGREE: one file for each algorithm, named as users type it."""
