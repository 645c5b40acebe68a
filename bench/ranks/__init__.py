"""What the ranks of each contender run. Imports nothing but the standard library before it must: each has its own environment."""
