from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.serving.wire.connection import FrameBuffer, frame
from headrace.serving.wire.messages import WireError


@given(st.lists(st.binary(max_size=40), max_size=8), st.data())
def test_frames_survive_any_cut(payloads: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(frame(payload) for payload in payloads)
    buffer, received = FrameBuffer(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        received += buffer.feed(stream[:size])
        stream = stream[size:]
    assert received == payloads
    assert buffer.pending == 0


def test_a_frame_over_the_limit_is_refused_before_its_content_arrives() -> None:
    with pytest.raises(WireError, match="announces 101 bytes"):
        list(FrameBuffer(limit=100).feed(frame(b"x" * 101)[:4]))
    with pytest.raises(WireError, match="101 bytes"):
        frame(b"x" * 101, limit=100)
    assert list(FrameBuffer(limit=100).feed(frame(b"x" * 100))) == [b"x" * 100]
