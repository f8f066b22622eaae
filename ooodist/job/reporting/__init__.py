"""What a job tells: progress, curves, traces and metrics while it trains, and a summary."""
