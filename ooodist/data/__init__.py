"""Data for training: every kind is turned into the same pair of datasets for one worker.

Importing this package does not import TensorFlow; :func:`load` does.
"""

from ooodist.config.data import KINDS, DataConfig
from ooodist.data.loader import load
from ooodist.data.result import Data

__all__ = ["KINDS", "Data", "DataConfig", "load"]
