"""Elastic training: for a while, only the tensors that matter most for the time they cost."""
