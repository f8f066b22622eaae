"""Each rank's samples: streams that are shuffled, shared out and read; ``kinds`` makes them."""
