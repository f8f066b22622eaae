"""Reads JSON and HDF5 that anyone may have written: sizes are bounded, and nothing is trusted."""
