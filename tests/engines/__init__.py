"""Tests of ooodist.engines, on real engines with real processes."""
