"""The traced training step: tape, order, exchange and update; several steps per execution."""
