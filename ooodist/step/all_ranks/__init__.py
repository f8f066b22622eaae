"""What ranks exchange inside a step other than gradients: sums, objects, moments, mask sizes."""
