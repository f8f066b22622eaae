"""Starts the processes of a job, here or on other hosts, and ends them all."""
