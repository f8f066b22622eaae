"""The job file as dataclasses, and back: parsing alone, without TensorFlow and Keras."""
