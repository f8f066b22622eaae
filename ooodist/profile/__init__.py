"""What things cost here: seconds and bytes of a model's units, and of the network.

``profile_of`` measures both, or finds what was measured before. The names below load TensorFlow
only when they are used.
"""
