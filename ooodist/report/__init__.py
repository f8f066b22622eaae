"""Reports for people: what a run did, from the profiler, and what a plan is predicted to do."""
