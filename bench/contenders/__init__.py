"""One file a contender: where it comes from and how its ranks are started. What they run is in `bench/ranks/`."""
