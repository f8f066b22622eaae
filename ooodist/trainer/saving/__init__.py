"""Checkpoints of a training under way: when they are due, and writing them beside it."""
