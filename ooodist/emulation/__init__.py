"""Pipelines whose ranks wait instead of computing, to try schedules without a cluster."""
