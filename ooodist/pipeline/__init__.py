"""Pipeline-parallel training: stages of a model on several devices, F, I and W apart."""
