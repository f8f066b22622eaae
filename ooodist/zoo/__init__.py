"""Trained models in a folder or bucket, and the start of a new one from the most similar."""
