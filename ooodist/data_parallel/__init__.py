"""Data parallelism: replicas exchange gradients by a plan, which may be found while training."""
