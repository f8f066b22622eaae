"""Keras's fit and evaluate on all ranks: each its part of the data, checkpoints, progress."""
