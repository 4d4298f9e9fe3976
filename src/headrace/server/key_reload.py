"""SIGHUP reads the key file again."""

from __future__ import annotations

import asyncio
import logging
import signal

from headrace.errors import ConfigError
from headrace.server.traffic import Traffic

_HANGUP = frozenset({signal.SIGHUP})

_log = logging.getLogger(__name__)


def hold_hangups() -> None:
    """Keep SIGHUP waiting until `reload_on_hangup`: while a model loads it would end the process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANGUP)


def reload_on_hangup(traffic: Traffic) -> None:
    """Put the file's keys into force on every SIGHUP; a file that is wrong changes nothing. Main thread only."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _reload, traffic)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANGUP)


def _reload(traffic: Traffic) -> None:
    try:
        traffic.reload()
    except ConfigError as error:
        _log.error("the keys are left as they were: %s", error)
        return
    _log.warning("%d keys are in force", len(traffic.keys))
