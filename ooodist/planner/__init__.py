"""Costs, plans and schedules, what they take, and the search for the best; without TensorFlow."""
