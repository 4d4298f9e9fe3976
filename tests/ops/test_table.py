"""Binding: order, refusals, forcing, and the printable table."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.ops import reference, torch_fast
from headrace.ops.candidates import DEFAULT_TABLE, OPS_NAMES
from headrace.ops.cpu.support import EMULATED, INSTRUCTION_SETS, native_facts
from headrace.ops.table import PLAIN_OPS, WEIGHT_OPS, Candidate, Facts, OpKey, OpTable, Selection
from tests import needs


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
            *(Candidate(op, "packed", packed_linear, _packed_only) for op in WEIGHT_OPS),
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
def test_impossible_bindings_give_the_reason(options: dict[str, Any], words: str) -> None:
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


# -- suites: the kernels of one instruction set serve every op or none --------------------------------------


def _select(
    kernels: tuple[str, ...] = ("avx512", "avx2", "portable", EMULATED),
    dims: tuple[int, ...] = (64,),
    **options: Any,
) -> Selection:
    facts = native_facts(kernels, "never built", dims)
    return DEFAULT_TABLE.select(
        **{"device": "cpu", "dtype": "bfloat16", "formats": ("bf16",), "facts": facts, **options}
    )


def test_the_best_instruction_set_serves_every_op() -> None:
    chosen = _select()
    assert chosen.suite == "avx512"
    assert {name for _, _, name, _ in chosen.rows()} == {"avx512"}
    assert {why for *_, why in chosen.rows()} == {"amx: not on this CPU, or not in this build"}
    assert _select(("avx2", "portable")).suite == "avx2"
    assert _select(("avx512_vnni", "avx512", "portable")).suite == "avx512_vnni"  # as the machine prefers
    assert _select(formats=("int4-g64", "bf16")).suite == "avx512"


@pytest.mark.parametrize("name", [*INSTRUCTION_SETS, EMULATED])
def test_any_set_can_be_forced_where_it_is(name: str) -> None:
    chosen = _select((*INSTRUCTION_SETS, EMULATED), force=name)
    assert chosen.suite == name and {row[2] for row in chosen.rows()} == {name}
    with pytest.raises(ConfigError, match="not on this CPU"):
        _select(tuple({*INSTRUCTION_SETS} - {name}), force=name)


def test_emulation_is_never_chosen_by_itself() -> None:
    assert _select((EMULATED,), formats=("dense",)).suite is None
    assert _select((EMULATED, "portable")).suite == "portable"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dims": (64, 72)}, "avx2, portable: heads of 72 channels are not a multiple of 16"),
        ({"kernels": ()}, "never built"),
        ({"device": "cuda"}, "runs on CPUs only"),
        ({"dtype": "float16"}, "not in float16"),
        ({}, "reads packed weights only"),
    ],
)
def test_one_op_that_refuses_leaves_the_whole_model_to_torch(options: dict[str, Any], words: str) -> None:
    chosen = _select(**{"formats": ("dense",), **options})
    assert chosen.suite is None
    for op, _, name, why in chosen.rows():
        assert name == ("torch" if op == "paged_attention" else "reference")
        assert words in why, op
    ops = chosen.load()
    assert ops.linear["dense"] is reference.linear and ops.paged_attention is torch_fast.paged_attention


@pytest.mark.parametrize("name", ["torch", "reference"])
def test_forcing_torch_leaves_out_the_native_kernels(name: str) -> None:
    chosen = _select(formats=("dense",), force=name)
    assert chosen.suite is None and {row[2] for row in chosen.rows()} <= {"torch", "reference"}
    assert {row[0]: row[2] for row in chosen.rows()}["paged_attention"] == name


def test_a_suite_without_an_op_is_not_chosen() -> None:
    def yes(key: OpKey, facts: Facts) -> None:
        return None

    table = OpTable(
        [
            Candidate("linear", "half", packed_linear, yes, suite=True),
            *(Candidate(op, "plain", getattr(reference, op), yes) for op in PLAIN_OPS + WEIGHT_OPS),
        ]
    )
    chosen = table.select(device="cpu", dtype="float32")
    assert chosen.suite is None
    assert {row[0]: row[3] for row in chosen.rows()}["linear"] == "half: has no embedding"


def test_names_for_ops_force() -> None:
    assert set(OPS_NAMES) == {*INSTRUCTION_SETS, EMULATED, "torch", "reference"}


def test_native_candidates_name_functions_that_exist() -> None:
    needs.native()
    chosen = DEFAULT_TABLE.select(
        device="cpu", dtype="float32", formats=("f32",), facts=native_facts(("portable",), "", (64,))
    )
    assert chosen.suite == "portable"
    assert all(callable(choice.candidate.load()) for choice in chosen.choices)
