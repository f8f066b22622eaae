"""Measures costs on this machine: seconds and bytes of units, of a step, of the network."""
