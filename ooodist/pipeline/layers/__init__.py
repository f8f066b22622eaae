"""What the layers of a model cost, measured by one rank or by all of them in parts."""
