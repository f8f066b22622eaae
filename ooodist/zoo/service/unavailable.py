"""The error raised when a service does not answer."""

from __future__ import annotations

from ooodist.errors import UserError


class ZooUnavailable(UserError):
    """The zoo's service does not answer."""
