"""Represents a model as a graph of operators, and finds which units belong together."""
