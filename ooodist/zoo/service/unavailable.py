"""The error for a service that does not answer."""

from __future__ import annotations

from ooodist.errors import UserError


class ZooUnavailable(UserError):
    """There is no answer from the zoo's service."""
