"""Warm-up: a new model starts from the transformed weights of a similar one that was trained."""
