"""The kinds of data, a module each."""
