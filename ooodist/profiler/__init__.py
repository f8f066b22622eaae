"""What things cost here: seconds and bytes of a model's units, of a step, of the network."""
