"""What all folders use: YAML, complete files, digests, quantities, what programs share."""
