"""`cache_control`: how many tokens of a prompt a caller wants to find in the prefix cache the next time, and how long.

Source: https://docs.anthropic.com/en/docs/build-with-claude/prompt-caching. A mark stands on a block and means all
before it: tools, then the system message, then the conversation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import InvalidParams

MAX_MARKS = 4
TTLS_S = {"5m": 300.0, "1h": 3600.0}
DEFAULT_TTL = "5m"


@dataclass(frozen=True, slots=True)
class CacheMark:
    """`messages`, `system`: the request up to the end of the marked block; no messages where the mark is on a tool or
    on the system message. ttl_s: seconds."""

    messages: Sequence[Any]
    system: Any
    ttl_s: float


def cache_marks(messages: Any, system: Any, tools: Any, whole: Any) -> list[CacheMark]:
    """The marks of a request in the order of its prompt. `whole`: the request's own `cache_control`, which marks its
    last block.

    The shape of the rest has been checked. Raises InvalidParams for a mark of another shape, and for too many.
    """
    found: list[CacheMark] = []
    for number, tool in enumerate(tools or ()):
        ttl = _ttl(tool, f"tools[{number}]")
        if ttl is not None:
            found.append(CacheMark((), None, ttl))
    for at, block, where in _blocks(system, "system"):
        ttl = _ttl(block, where)
        if ttl is not None:
            found.append(CacheMark((), system[: at + 1], ttl))
    for number, message in enumerate(messages):
        for at, block, where in _blocks(message["content"], f"messages[{number}].content"):
            ttl = _ttl(block, where)
            if ttl is not None:
                cut = {"role": message["role"], "content": message["content"][: at + 1]}
                found.append(CacheMark([*messages[:number], cut], system, ttl))
    ttl = _ttl({"cache_control": whole}, "the request")
    if ttl is not None:
        found.append(CacheMark(messages, system, ttl))
    if len(found) > MAX_MARKS:
        raise InvalidParams(
            f"the request has {len(found)} marks of cache_control; at most {MAX_MARKS} are allowed"
        )
    return found


def _blocks(content: Any, where: str) -> Iterator[tuple[int, Mapping[str, Any], str]]:
    if isinstance(content, (list, tuple)):
        for at, block in enumerate(content):
            yield at, block, f"{where}[{at}]"


def _ttl(block: Mapping[str, Any], where: str) -> float | None:
    """Seconds; None without a mark."""
    control = block.get("cache_control")
    if control is None:
        return None
    if not isinstance(control, Mapping) or control.get("type") != "ephemeral":
        raise InvalidParams(f'{where}.cache_control must be {{"type": "ephemeral"}}')
    ttl = control.get("ttl", DEFAULT_TTL)
    if not isinstance(ttl, str) or ttl not in TTLS_S:
        raise InvalidParams(f"{where}.cache_control.ttl must be one of {', '.join(TTLS_S)}")
    return TTLS_S[ttl]
