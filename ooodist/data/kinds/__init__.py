"""The kinds of data, one module each."""
