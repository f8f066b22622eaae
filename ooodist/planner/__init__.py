"""Costs, plans, schedules, their simulation, and the search for the best; without TensorFlow."""
