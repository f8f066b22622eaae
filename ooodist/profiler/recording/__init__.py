"""Reads recordings of TensorFlow's profiler: which op ran when, for which unit and step."""
