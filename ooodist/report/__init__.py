"""What a run did, read back from the profiler, and what a plan is predicted to do; for people."""
