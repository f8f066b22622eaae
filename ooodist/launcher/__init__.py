"""Starts the processes of a job, here or on an emulated network, and ends them all."""
