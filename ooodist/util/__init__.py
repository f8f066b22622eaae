"""Helpers for all packages: YAML, atomic files, digests, quantities, what programs share."""
