"""Reads JSON that may be hostile: its values are counted before anything is made of them.

A few bytes of JSON become a hundred in memory (``{}``), and a thousandth of them when compressed.
While Python parses, no other thread of a service runs. So both are bounded before.
"""

from __future__ import annotations

import json
from typing import Any

from ooodist.errors import UserError

MOST_VALUES = 2_000_000  # of a file; a DenseNet of 201 layers has 150,000
MOST_TEXT = 1000  # characters in a text
MOST_RATIO = 100  # by which content may be compressed; graphs of real models: 10 to 30
FREE_BYTES = 4 * 2**20  # of content that may be compressed by any ratio, such as a table of zeros

_BEGINNINGS = (b",", b":", b"[", b"{")  # one of them is before each value but the first


def loads(text: bytes, what: str) -> Any:
    """The value of a JSON text. Raises UserError for one of too many values."""
    values = sum(map(text.count, _BEGINNINGS))  # more than there are if texts contain the signs
    if values > MOST_VALUES:
        raise UserError(f"{what} has up to {values} values; there may be {MOST_VALUES}")
    return json.loads(text)


def most_bytes(packed: int) -> int:
    """How many bytes content may have that is compressed to ``packed`` bytes."""
    return FREE_BYTES + MOST_RATIO * packed
