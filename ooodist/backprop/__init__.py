"""Separating the output gradients (dX) of a traced step from its weight gradients (dW)."""
