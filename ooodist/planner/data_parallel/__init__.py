"""Plans of data-parallel steps, the order of dW and of exchanges: simulation and search."""
