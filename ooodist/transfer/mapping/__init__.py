"""Makes the weights of a model from those of another."""
