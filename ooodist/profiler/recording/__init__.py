"""Files of TensorFlow's profiler, read: which op ran when, for which unit of which step."""
