"""Pipeline-parallel training: stages of a model on several devices, F, B and W apart."""
