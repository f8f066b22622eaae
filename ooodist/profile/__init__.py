"""What things cost here: seconds and bytes of a model's units, and of the network."""
