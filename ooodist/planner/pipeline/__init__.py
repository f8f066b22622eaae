"""Pipeline schedules: actions, checks, simulation, search, and splitting layers into stages."""
