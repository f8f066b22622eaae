"""Schedules of a pipeline: actions, checks, simulation, search, and layers made into stages."""
