"""Finds the F, dX and dW units of a traced step, imposes an order, and cuts pipeline stages."""
