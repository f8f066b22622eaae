"""Elastic training: trains only the weights that matter most within a time budget."""
