"""Quantities: parses ``10Gbit``, ``30us`` or ``12GiB``; formats ``1 stage`` and ``2 stages``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ooodist.errors import UserError

BITS_PER_SECOND = {"bit": 1.0, "Kbit": 1e3, "Mbit": 1e6, "Gbit": 1e9, "Tbit": 1e12}
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
BYTES = {"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}

_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([A-Za-z]+)")
_BEFORE_UNIT = re.compile(r"(?<=[0-9.])\s+(?=[A-Za-z])")


def counted(number: int, word: str, plural: str = "s") -> str:
    """Counts in words: ``1 model``, ``2 models``; ``plural`` is what is then added to the word."""
    return f"{number:,} {word}{'' if number == 1 else plural}"


def parse(text: str, units: Mapping[str, float]) -> float | None:
    """The number times its unit; None for anything but a number and a known unit."""
    found = _QUANTITY.fullmatch(text)
    return float(found[1]) * units[found[2]] if found and found[2] in units else None


def read(
    text: str, name: str, units: Mapping[str, float], example: str, *, positive: bool = False
) -> float:
    """The number times its unit, allowing spaces around the number.

    Args:
        text: the quantity as given.
        name: name of the option, for the error.
        units: value of each unit, by name.
        example: a valid quantity, for the error.
        positive: whether 0 is refused.

    Raises:
        UserError: it is not a valid quantity.
    """
    value = parse(_BEFORE_UNIT.sub("", text.strip()), units)
    if value is None or (positive and not value):
        more = ", more than 0" if positive else ""
        allowed = f"a number and one of {', '.join(units)}{more}, as {example}"
        raise UserError(f"{name} is {text}; it must be {allowed}")
    return value
