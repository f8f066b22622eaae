"""``python -m ooodist.plan``: plans a job without training it."""
