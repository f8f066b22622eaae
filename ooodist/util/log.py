"""Shows the log of a user's program, which nobody would see otherwise."""

from __future__ import annotations

import logging
import sys

FORMAT = "ooodist: %(message)s"

_logger = logging.getLogger("ooodist")


class _Level(int):
    """A level that was set here: the user may set an equal one, which then stays."""


class _UntilConfigured(logging.Filter):
    """Shows what is logged on standard error, for as long as the user configures nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._handler = logging.StreamHandler()
        self._handler.setFormatter(logging.Formatter(FORMAT))
        self._level = _Level(logging.NOTSET)

    def begin(self, level: int) -> None:
        """Begins, unless the user has a configuration; then there is nothing to do."""
        if self._is_configured():
            return
        self._handler.setStream(sys.stderr)
        _logger.addFilter(self)
        _logger.addHandler(self._handler)
        is_free = _logger.level == logging.NOTSET or _logger.level is self._level
        if is_free and logging.root.level == logging.WARNING:  # the default
            self._level = _Level(level)
            _logger.setLevel(self._level)

    def filter(self, record: logging.LogRecord) -> bool:
        """Lets a message pass, unless the user's configuration, which wins, has come since."""
        if self._is_configured():
            _logger.removeFilter(self)
            _logger.removeHandler(self._handler)
        elif logging.root.level == logging.WARNING:
            return True
        if _logger.level is self._level:
            _logger.setLevel(logging.NOTSET)
        return _logger.isEnabledFor(record.levelno)

    def _is_configured(self) -> bool:
        return bool(logging.root.handlers) or any(
            handler is not self._handler for handler in _logger.handlers
        )


_shown = _UntilConfigured()


def show(rank: int) -> None:
    """Shows the log of this rank on standard error, if the user has configured none.

    It is that of rank 0, and warnings of the others. Calling it again adds nothing.
    """
    _shown.begin(logging.WARNING if rank else logging.INFO)
