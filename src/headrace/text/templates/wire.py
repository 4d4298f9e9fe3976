"""What a renderer process and its parent share: limits, and messages of a length and that many bytes.

Standard library only, as both sides import it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, IntFlag

HEAD_BYTES = 4
"""The length of a message, in network byte order, before the message."""


@dataclass(frozen=True)
class TemplateLimits:
    """Limits of one template and of each of its renderings; published templates stay far below the defaults."""

    source_chars: int = 128 * 2**10
    """Longest template."""
    chat_chars: int = 2 * 2**20
    """All that a template sees; see `PlainCopier`."""
    prompt_chars: int = 4 * 2**20
    """Longest prompt."""
    cpu_s: float = 1.5
    """Processor time to compile the template, and of each rendering."""
    memory_bytes: int = 512 * 2**20
    """Address space of the renderer process."""


class Answer(IntEnum):
    """First byte of an answer; the rest is text in UTF-8."""

    DONE = 0
    """The prompt; at first, the number of `Reads`."""
    RAISED = 1
    """The template called `raise_exception` with this message."""
    FAILED = 2
    """What went wrong."""


class Reads(IntFlag):
    """The forms of messages that a template reads."""

    PARTS = 1
    """Lists of content parts, over which it iterates by itself; others expect one string."""
    ARGUMENTS_AS_TEXT = 2
    """Arguments of calls as text in JSON, which it joins to other text; others expect objects."""
    DESCRIPTIONS = 4
    """A description of every tool, which it joins to other text; others can do without."""


class Exit(IntEnum):
    """Exit statuses of a renderer whose template exceeded a limit. For time there is the signal SIGPROF."""

    MEMORY = 3
    OUTPUT = 4


def framed(message: bytes) -> bytes:
    return len(message).to_bytes(HEAD_BYTES, "big") + message


def unframed(read: Callable[[int], bytes], most: int) -> bytes:
    """The next message of at most `most` bytes.

    read: as the `read` of a buffered file: exactly so many bytes, fewer at the end.

    Raises EOFError at the end, ValueError for a message that is too long.
    """
    head = read(HEAD_BYTES)
    length = int.from_bytes(head, "big")
    if length > most:
        raise ValueError(f"a message of {length} bytes is longer than {most}")
    message = read(length)
    if len(head) < HEAD_BYTES or len(message) < length:
        raise EOFError
    return message
