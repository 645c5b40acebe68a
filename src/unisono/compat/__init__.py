"""Fronts for programs that were written for other systems."""
