"""One all-reduce algorithm a file, over send and receive."""
