"""Figures, tables and traces of pipeline steps, recorded and simulated."""
