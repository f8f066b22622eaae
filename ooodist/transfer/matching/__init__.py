"""Which operator of one model fits which of another."""
