"""Binding: order, refusals, forcing, and the printable table."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.ops import reference, torch_fast
from headrace.ops.candidates import DEFAULT_TABLE
from headrace.ops.table import PLAIN_OPS, WEIGHT_OPS, Candidate, Facts, OpKey, OpTable


def fast_attention(*args: Any, **kwargs: Any) -> None: ...


def packed_linear(*args: Any) -> None: ...


def _needs_wide_heads(key: OpKey, facts: Facts) -> str | None:
    return None if facts.get("head_dim") == 128 else f"needs head_dim 128, got {facts.get('head_dim')}"


def _packed_only(key: OpKey, facts: Facts) -> str | None:
    return None if key.format == "packed" else "reads packed weights only"


def _cpu_dense(key: OpKey, facts: Facts) -> str | None:
    return None if (key.device, key.format) == ("cpu", "dense") else "dense weights on cpu only"


def _table() -> OpTable:
    return OpTable(
        [
            Candidate("paged_attention", "fast", fast_attention, _needs_wide_heads),
            Candidate("linear", "packed", packed_linear, _packed_only),
            Candidate("gated_mlp", "packed", packed_linear, _packed_only),
            *(Candidate(op, "plain", getattr(reference, op), _cpu_dense) for op in PLAIN_OPS + WEIGHT_OPS),
        ]
    )


def test_first_candidate_that_accepts_is_bound() -> None:
    ops = _table().bind(device="cpu", dtype="float32", facts={"head_dim": 128})
    assert ops.paged_attention is fast_attention
    assert ops.linear["dense"] is reference.linear
    assert ops.rms_norm is reference.rms_norm


def test_refusals_are_kept_and_printed() -> None:
    ops = _table().bind(device="cpu", dtype="float32", facts={"head_dim": 64})
    assert ops.paged_attention is reference.paged_attention
    rows = {(op, form): (name, why) for op, form, name, why in ops.rows()}
    assert rows["paged_attention", "dense"] == ("plain", "fast: needs head_dim 128, got 64")
    assert rows["linear", "dense"] == ("plain", "packed: reads packed weights only")
    assert rows["embedding", "dense"] == ("plain", "")
    assert {op for op, *_ in ops.rows()} == {*PLAIN_OPS, *WEIGHT_OPS}


def test_weight_ops_are_bound_for_each_format() -> None:
    ops = _table().bind(device="cpu", dtype="float32", formats=("dense", "packed"))
    assert ops.linear["packed"] is packed_linear
    assert ops.linear["dense"] is reference.linear


def test_force_prefers_a_candidate_where_there_is_one() -> None:
    ops = _table().bind(device="cpu", dtype="float32", facts={"head_dim": 128}, force="plain")
    assert ops.paged_attention is reference.paged_attention


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"force": "cuda"}, "no op is implemented by 'cuda'"),
        ({"force": "fast"}, "needs head_dim 128"),
        ({"formats": ("int3",)}, "int3"),
        ({"device": "tpu"}, "on tpu"),
    ],
)
def test_impossible_bindings_say_why(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        _table().bind(**{"device": "cpu", "dtype": "float32", **options})


def test_no_candidate_at_all() -> None:
    with pytest.raises(ConfigError, match="there is no candidate"):
        OpTable([]).bind(device="cpu", dtype="float32")


def test_default_table_prefers_batched_attention_and_can_be_forced_to_the_reference() -> None:
    ops = DEFAULT_TABLE.bind(device="cpu", dtype="bfloat16")
    assert ops.paged_attention is torch_fast.paged_attention
    assert {name for _, _, name, _ in ops.rows()} == {"torch", "reference"}
    forced = DEFAULT_TABLE.bind(device="cpu", dtype="bfloat16", force="reference")
    assert {name for _, _, name, _ in forced.rows()} == {"reference"}
    with pytest.raises(ConfigError, match="dense weights only"):
        DEFAULT_TABLE.bind(device="cpu", dtype="float32", formats=("int4",))
