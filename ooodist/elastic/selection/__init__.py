"""Selects the most important weights whose training fits into a time budget."""
