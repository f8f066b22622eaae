"""A model as a graph of operators, and which units belong together."""
