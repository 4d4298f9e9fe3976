from __future__ import annotations

from typing import Any

import pytest

from headrace.text.byte_scheme import ByteJoiner, ByteScheme, scheme_of_decoder

REPLACE = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
FALLBACK, FUSE, LEVEL = {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "ByteLevel"}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}


def sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "decoders": list(steps)}


@pytest.mark.parametrize(
    ("decoder", "scheme"),
    [
        (LEVEL, ByteScheme(byte_level=True)),
        (sequence(LEVEL, FUSE), ByteScheme(byte_level=True)),
        (
            sequence(REPLACE, FALLBACK, FUSE, STRIP),
            ByteScheme(byte_fallback=True, replacements=(("▁", " "),), strip_spaces=1),
        ),
        (sequence(REPLACE, FALLBACK, FUSE), ByteScheme(byte_fallback=True, replacements=(("▁", " "),))),
        (METASPACE, ByteScheme(replacements=(("▁", " "),), drop_in_first="▁")),
        (METASPACE | {"prepend_scheme": "never"}, ByteScheme(replacements=(("▁", " "),))),
        (
            sequence(FALLBACK, METASPACE),
            ByteScheme(byte_fallback=True, replacements=(("▁", " "),), drop_in_first="▁"),
        ),
        (None, None),
        ({"type": "WordPiece", "prefix": "##", "cleanup": True}, None),
        ({"type": "CTC"}, None),
        ({"type": "Unheard of"}, None),
        ({}, None),
        (sequence(LEVEL, LEVEL), None),
        (sequence(REPLACE, LEVEL), None),
        (sequence(STRIP, FUSE), None),
        (sequence(FUSE, REPLACE), None),
        (sequence(FUSE, STRIP | {"stop": 1}), None),
        (sequence(FUSE, STRIP | {"content": "x"}), None),
        (REPLACE | {"pattern": {"Regex": "▁"}}, None),
        (REPLACE | {"pattern": {"String": ""}}, None),
    ],
)
def test_decoders_fold_into_schemes(decoder: dict[str, Any] | None, scheme: ByteScheme | None) -> None:
    assert scheme_of_decoder(decoder) == scheme


def test_beginnings() -> None:
    strip = ByteScheme(replacements=(("▁", " "),), strip_spaces=2)
    joiner = ByteJoiner(strip)
    assert joiner.add("", b"") == b"" and not joiner.settled
    assert joiner.add("▁", b" ") == b"" and not joiner.settled
    assert joiner.add("▁▁a", b"  a") == b" a" and joiner.settled
    assert joiner.add("▁b", b" b") == b" b"

    drop = ByteJoiner(ByteScheme(replacements=(("▁", " "),), drop_in_first="▁"))
    assert drop.add("▁▁a▁b", b"  a b") == b"ab" and drop.settled
    assert drop.add("▁c", b" c") == b" c"
