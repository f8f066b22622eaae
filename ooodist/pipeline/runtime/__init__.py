"""Carries out a schedule: work of a stage, messages over MPI, gradients, update."""
