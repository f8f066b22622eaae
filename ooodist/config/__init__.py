"""Job files as dataclasses, and back; parsing itself needs neither TensorFlow nor Keras."""
