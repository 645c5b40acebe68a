"""One file a benchmark: where its contenders come from and how their ranks are started. What they run is in `bench/ranks/`."""
