"""Data parallel: a model whose replicas exchange gradients as a plan says, found while training."""
