"""What a run did: when each unit and each exchange really ran, read back from the profiler."""
