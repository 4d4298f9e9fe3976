"""The last look at what a failure says before a caller reads it."""

from __future__ import annotations

import logging
import re

GENERIC = "the server failed on this request"

_INSIDE = re.compile(
    r"""(?<![\w:/.])/\w[\w.\-]*/[\w.\-]   # a path
      | \b0x[0-9a-fA-F]{5,}               # an address
      | \b\w+\.(?:py|cpp|so)\b            # a source file
      | Traceback | File\ "               # where it happened
      | \b[A-Z]\w*(?:Error|Exception)\b   # a class
    """,
    re.VERBOSE,
)

_log = logging.getLogger(__name__)


def safe(message: str) -> str:
    """The message of a failure of ours, or a sentence without content where it shows the server's inside.

    Such messages are written with care where they are raised; this is for the one that was not. The log has it all.
    """
    if _INSIDE.search(message) is None:
        return message
    _log.error("kept from a caller: %s", message)
    return GENERIC
