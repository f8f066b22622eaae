"""Figures, tables and traces of data-parallel steps, recorded and simulated."""
