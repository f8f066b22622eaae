"""Published pipeline schedules, by name."""
