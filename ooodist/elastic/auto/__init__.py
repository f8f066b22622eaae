"""``rho: auto``: when a training is long enough for it, what it measures, and what it tries."""
