"""Hosts that are reached over ssh."""
