"""What the algorithms have in common whose workers agree through a centre."""
