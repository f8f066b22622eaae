"""Costs, plans, and what a plan takes: pure Python, without TensorFlow."""
