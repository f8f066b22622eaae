"""A trained model's weights into another: which operator is which, what becomes of each weight."""
