"""Ranks that are not given the same: other callbacks, other weights, other methods."""
