"""What a user sets of each part of a training, as dataclasses; nothing here needs TensorFlow."""
