"""The traced training step: tape, order, exchange, update; several steps to a call."""
