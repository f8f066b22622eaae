"""Transfers a trained model's weights to another model: matches operators, maps each weight."""
