"""A zoo of trained models in a folder or bucket, and warm starts from its most similar model."""
