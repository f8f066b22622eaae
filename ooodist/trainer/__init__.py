"""Keras's fit and evaluate on all ranks: sharded data, checkpoints, progress."""
