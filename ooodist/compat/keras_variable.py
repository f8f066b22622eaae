"""Private state of Keras variables."""

from __future__ import annotations

import keras


def set_path(variable: keras.Variable, path: str) -> None:
    """Gives a variable this path: ``Variable._path``, which the public ``path`` returns.

    Keras makes it of the numbers that layers have in this process; those of other processes may
    differ. Files go by the places of layers, not by it.
    """
    variable._path = path
