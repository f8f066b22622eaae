"""What things cost here: seconds and bytes of a model's units, and of the network.

The names below load TensorFlow only when they are used.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "Profile": "ooodist.profile.folder",
    "profile_of": "ooodist.profile.storage",
    "measure_compute": "ooodist.profile.compute",
    "measure_network": "ooodist.profile.network",
    "model_digest": "ooodist.profile.digest",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'ooodist.profile' has no attribute {name!r}")
