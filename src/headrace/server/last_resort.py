"""An end for a process whose orderly end takes too long: no thread can be made to stop tokenizing a huge text."""

from __future__ import annotations

import logging
import os
import threading

_log = logging.getLogger(__name__)


class LastResort:
    """Ends this process at a deadline, unless `close` comes first. The engine below it ends with it."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def within(self, seconds: float, exit_code: int) -> None:
        """Set the deadline; a later call replaces it."""
        self.close()
        self._timer = threading.Timer(seconds, _end, (exit_code,))
        self._timer.daemon = True
        self._timer.start()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _end(exit_code: int) -> None:
    _log.warning("the server did not end in time: it ends now")
    os._exit(exit_code)
