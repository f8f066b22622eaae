"""The training step: ordered, exchanged, and several steps to a launch."""
