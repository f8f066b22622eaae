"""Matches the operators of one model to those of another."""
