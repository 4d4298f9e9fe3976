from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from headrace.models.spec import ModelSpec
from headrace.plan.activations import activation_bytes, activation_parts
from headrace.plan.formats import memory_format

FLOAT32 = memory_format("float32", "float32", None)
BFLOAT16 = memory_format("bfloat16", "bfloat16", None)


def test_parts_by_hand(make_spec: Callable[..., ModelSpec]) -> None:
    # The second layer is the wider one: four heads and two KV heads of 8.
    spec = make_spec((None, None), kv_heads=(1, 2))
    parts = {part.name: part.bytes for part in activation_parts(spec, tokens=10, rows=3, memory=BFLOAT16)}
    assert parts == {
        "hidden": 10 * 3 * 16 * 2,
        "attention": 10 * ((4 + 2 + 2) * 8 + 4 * 8) * 2,
        "feed-forward": 10 * 3 * 32 * 2,
        "logits": 3 * 2 * 64 * 4,
        "embeddings": 10 * 16 * 4 + 3 * 16 * 8,
    }
    assert activation_bytes(spec, 10, 3, BFLOAT16) == sum(parts.values())


def test_layers_share_their_buffers(make_spec: Callable[..., ModelSpec]) -> None:
    one, many = make_spec((None,)), make_spec((None,) * 9)
    assert activation_bytes(one, 7, 2, FLOAT32) == activation_bytes(many, 7, 2, FLOAT32)


@given(tokens=st.integers(0, 10**6), rows=st.integers(0, 10**4), more=st.integers(0, 99))
def test_never_falls(make_spec: Callable[..., ModelSpec], tokens: int, rows: int, more: int) -> None:
    spec = make_spec()
    size = activation_bytes(spec, tokens, rows, FLOAT32)
    assert (
        activation_bytes(spec, tokens + more, rows, FLOAT32)
        >= size
        <= activation_bytes(spec, tokens, rows + more, FLOAT32)
    )
