"""Plans of a data-parallel step: order of dW and of the exchanges, simulated and searched."""
