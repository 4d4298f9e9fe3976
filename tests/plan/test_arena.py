"""The plan of the native path against what it really allocates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.build import assemble
from headrace.config import EngineConfig
from headrace.plan.activations import activation_bytes
from headrace.plan.formats import memory_format
from headrace.plan.ledger import ledger
from headrace.program.lower import lower
from headrace.quant.format import PAGE, WeightFormats, parse_format
from tests import needs
from tests.gguf_files import write_gguf
from tests.places import TALE

needs.native()

from headrace.runner import native_decoder  # noqa: E402

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("tale", {}),
    ("tale", {"ops_force": "amx-emulated", "kv_cache_dtype": "int8"}),
    ("tale", {"dtype": "float32", "kv_cache_dtype": "bfloat16", "num_threads": 3}),
    ("tale", {"ops_force": "avx2"}),
    ("tale", {"ops_force": "portable", "kv_cache_dtype": "int8"}),
    ("tale", {"ops_force": "avx2", "quantization": "int8"}),
    ("tale", {"quantization": "int4", "kv_cache_dtype": "int8", "max_num_batched_tokens": 77}),
    ("tale", {"quantization": "int8-g64-asym", "block_size": 20, "num_kv_blocks": 70}),
    ("tale", {"quantization": "int4-channel-a16", "attention_sinks": 4, "sliding_window": 64}),
    ("tale", {"kv_layout": "contiguous", "max_model_len": 100, "quantization": "int4-g32-asym"}),
    ("tale", {"kv_cache_dtype": "fp8", "block_size": 20}),
    ("tale", {"kv_cache_dtype": "int4", "max_num_batched_tokens": 77, "max_num_seqs": 9}),
    (
        "tale",
        {
            "kv_cache_dtype": "int4",
            "attention_sinks": 4,
            "sliding_window": 64,
            "ops_force": "avx2",
            "block_size": 64,
        },
    ),
    ("shape:tiny", {"dtype": "bfloat16", "quantization": "int8"}),
    ("shape:smollm2-135m", {"quantization": "int4", "kv_cache_memory": "64MiB", "max_model_len": 256}),
]


@pytest.mark.parametrize(
    ("model", "options"),
    [
        pytest.param(
            *variant, marks=() if variant[1].get("ops_force", "avx2") == "avx2" else pytest.mark.long
        )
        for variant in VARIANTS
    ],
    ids=lambda value: str(value),
)
def test_the_ledger_is_what_is_allocated(model: str, options: dict[str, Any]) -> None:
    check(model, options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dtype": "bfloat16", "quantization": "int8", "kv_cache_dtype": "int8"},
        {"ops_force": "avx2", "block_size": 20},
    ],
    ids=str,
)
def test_the_ledger_of_latents(options: dict[str, Any], tiny_models: Mapping[str, str]) -> None:
    """One row a token, and matrices of heads, which stay floats."""
    check(tiny_models["deepseek"], {"num_kv_blocks": 64, **options})


@pytest.mark.parametrize("name", ["delta", "convolution"])
@pytest.mark.parametrize(
    "options",
    [{}, {"dtype": "bfloat16", "quantization": "int8", "kv_cache_dtype": "int8", "state_interval": 40}],
    ids=str,
)
def test_the_ledger_of_recurrent_states(
    name: str, options: dict[str, Any], tiny_models: Mapping[str, str]
) -> None:
    """Float32 slots: one a sequence, and copies."""
    check(tiny_models[name], {"num_kv_blocks": 64, **options})


@pytest.mark.parametrize(
    "options", [{}, {"dtype": "bfloat16", "quantization": "int8", "kv_cache_dtype": "int8"}], ids=str
)
def test_the_ledger_of_shared_keys_and_values(
    options: dict[str, Any], tiny_models: Mapping[str, str]
) -> None:
    """Half of the layers have no memory for them; embeddings of each layer besides."""
    check(tiny_models["gemma4"], {"num_kv_blocks": 64, **options})


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_ledger_of_other_types(restored: Callable[..., Path], dtype: str, tied: bool) -> None:
    check(str(restored(dtype, tied=tied)), {"ops_force": "avx2", "kv_cache_memory": "8MiB"})


BLOCKS = (
    "Q4_K",
    "Q6_K",
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q2_K",
    "Q3_K",
    "Q5_K",
    "IQ4_NL",
    "IQ4_XS",
    "MXFP4",
)


@pytest.mark.parametrize(
    "kind", [*BLOCKS[:2], *(pytest.param(kind, marks=pytest.mark.long) for kind in BLOCKS[2:])]
)
def test_the_ledger_of_gguf_blocks(kind: str, tmp_path: Path) -> None:
    """Of a file of one type, and of one whose v, up and embeddings have another."""
    check(str(write_gguf(TALE, tmp_path / "one.gguf", kind)), {"tokenizer": "tale"})
    other = ("attn_v", "ffn_up", "embd")
    mixed = write_gguf(
        TALE, tmp_path / "two.gguf", lambda name: "Q6_K" if any(part in name for part in other) else kind
    )
    check(str(mixed), {"tokenizer": "tale", "dtype": "bfloat16"})
    check(str(mixed), {"tokenizer": "tale", "quantization": "a16"})


def check(model: str, options: dict[str, Any]) -> None:
    recorded: dict[str, Any] = {}

    class Recorded(native_decoder.NativeDecoder):  # type: ignore[name-defined, misc]
        def __init__(self, program: Any, weights: Any, kv: Any, *rest: Any) -> None:
            recorded.update(program=program, weights=weights, kv=kv)
            super().__init__(program, weights, kv, *rest)
            recorded["tape"] = self.tape

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.runner.native_backend.NativeDecoder", Recorded)
        parts = assemble(EngineConfig.from_kwargs(model=model, **{"num_threads": 2, **options}))
    costs = ledger(parts.spec, parts.resolved)
    lines = {line.name: line.bytes for line in costs.weights}
    weights, held = recorded["weights"], dict.fromkeys(lines, 0)
    for ref in recorded["program"].weights:
        if ref.kind == "vector":
            held[ref.part] += weights.vectors[ref.name].nbytes
        if ref.kind in ("table", "tied"):
            held[ref.part] += weights.tables[ref.name].nbytes
        if ref.kind == "matrix":
            held[ref.part] += weights.matrices[ref.name].weight.nbytes
        if ref.kind == "tied" and weights.matrices[ref.name].weight is not weights.tables[ref.name]:
            held["head"] += weights.matrices[ref.name].weight.nbytes
    assert lines == held
    assert costs.kv_pool_bytes == recorded["kv"].nbytes == parts.resolved.kv_cache_memory
    # Attention's scratch memory is planned as a bound that holds for every instruction set.
    planned = sum(line.bytes for line in costs.activations if line.name != "embeddings")  # see its own test
    spare = planned - recorded["tape"].nbytes
    assert (
        0 <= spare <= 110_000 * parts.resolved.num_threads
    )  # int8 keys take 104 KiB more where there are tiles


def test_never_falls() -> None:
    program = lower(assemble(EngineConfig("shape:tiny")).spec)
    memory = memory_format("bfloat16", "int8", WeightFormats(parse_format("int4")), threads=2)
    sizes = [activation_bytes(program, tokens, 8, memory, ()) for tokens in range(1, 200, 3)]
    assert sizes == sorted(sizes) and np.diff(sizes).max() < 100 * PAGE
