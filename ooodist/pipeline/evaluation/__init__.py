"""Evaluating and predicting through the stages of a pipeline, which only run forward."""
