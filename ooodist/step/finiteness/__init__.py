"""What follows from gradients that are not finite: an end, a step less, another scale."""
