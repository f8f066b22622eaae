"""What can be selected, and the most important of it that fits into a budget."""
