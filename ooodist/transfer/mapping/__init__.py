"""The weights of a model from those of another."""
