"""Helpers for all packages, such as dataclasses from YAML, atomic files and quick imports."""
