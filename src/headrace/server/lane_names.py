"""What a request is called where everybody may look: its kind and a short number that leads nowhere."""

from __future__ import annotations

_KINDS = {"chatcmpl": "chat", "cmpl": "text", "resp": "response", "embd": "embedding"}
_OTHER = "request"

_FNV_OFFSET, _FNV_PRIME = 0x811C9DC5, 0x01000193


def lane_name(request_id: str, index: int = 0) -> str:
    """Such as "chat 3fa92c", and "chat 3fa92c.1" for its second completion.

    `request_id` is the engine's: the answer's id and the number of the prompt. An id may hold what a caller wrote, so
    it is never shown; whoever knows the answer's id can find its lane, and nobody can go back from here.
    """
    answer, _, prompt = request_id.rpartition("-")
    kind = _KINDS.get(answer.partition("-")[0], _OTHER)
    number = f"{_fnv(answer):08x}"[:6]
    parts = [part for part in (prompt, str(index)) if part not in ("", "0") and part.isdecimal()]
    return ".".join([f"{kind} {number}", *(part[:6] for part in parts)])


def _fnv(text: str) -> int:
    """FNV-1a of 32 bits, which a page can compute wherever it was loaded from; browsers keep SHA for secure origins."""
    value = _FNV_OFFSET
    for byte in text.encode("utf-8", "surrogatepass"):
        value = (value ^ byte) * _FNV_PRIME & 0xFFFFFFFF
    return value
