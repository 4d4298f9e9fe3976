"""A template's events are those of the chunks that it stands for, whatever the text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.server.http.events import event
from headrace.server.openai.choices import HOLE, ChunkTemplate
from tests.server.conftest import TinyServer


def chunk(text: str) -> dict[str, object]:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return {"id": "chat-1", "model": 'a "quoted" näme', "choices": [choice], "usage": None}


TEMPLATE = ChunkTemplate(chunk(HOLE))


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_it_equals_the_encoder(text: str) -> None:
    assert TEMPLATE.event(text) == event(chunk(text))


@pytest.mark.parametrize("text", ['"', "\\", "\n\n", "\x00", "\u2028", "…", "data: [DONE]"])
def test_awkward_texts(text: str) -> None:
    written = TEMPLATE.event(text)
    assert written == event(chunk(text))
    assert written.count(b"\n") == 2, "an event ends at its first empty line"


@pytest.mark.parametrize("bad", [{"text": "no hole"}, {"a": HOLE, "b": HOLE}])
def test_a_chunk_without_one_hole_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="unpack"):
        ChunkTemplate(bad)


def test_streams_have_the_same_fields_in_every_chunk(tiny: TinyServer) -> None:
    """The first chunk of a choice is encoded as a whole, the others from its template."""
    body = {"model": "tiny", "prompt": [5], "max_tokens": 9, "stream": True, "n": 2}
    stream = tiny.openai.completions.create(**body)  # type: ignore[call-overload]
    fields: dict[int, set[str]] = {}
    texts: dict[int, str] = {}
    for part in stream:
        (choice,) = part.choices
        shape = repr(part.model_dump(exclude={"choices"})) + repr(sorted(choice.model_dump()))
        fields.setdefault(choice.index, set()).add(shape)
        texts[choice.index] = texts.get(choice.index, "") + choice.text
    assert all(len(kinds) == 1 for kinds in fields.values()), fields
    whole = tiny.openai.completions.create(**{**body, "stream": False})  # type: ignore[call-overload]
    assert texts == {choice.index: choice.text for choice in whole.choices}
