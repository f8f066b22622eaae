"""Checkpoints: Keras files of whole models, and folders to which each rank writes a part."""
