"""WHICH SAMPLES: sources with random access, and the plan that says who uses which sample when."""
