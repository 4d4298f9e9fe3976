"""16-bit checkpoints stay in 16 bits where the kernels compute in float32, and not one bit of a result differs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace import LLM, SamplingParams
from headrace.build import Survey, survey
from headrace.config import EngineConfig
from headrace.plan.formats import memory_format
from headrace.plan.weights import total_weight_bytes
from headrace.program.lower import lower
from headrace.quant.format import F32, WeightFormats
from tests import needs
from tests.instruction_sets import parameters

native = needs.native()


FLOAT32_SETS = [name for name in ("avx512_vnni", "avx2", "portable") if name in native.available_kernels()]
Restored = Callable[..., Path]


def surveyed(model: Path | str, **options: object) -> Survey:
    return survey(EngineConfig.from_kwargs(model=str(model), **{"kv_cache_memory": "8MiB", **options}))


@pytest.mark.parametrize("name", parameters(FLOAT32_SETS))
def test_a_bfloat16_checkpoint_is_stored_as_it_is(name: str) -> None:
    plan = surveyed("tale", ops_force=name)
    resolved = plan.resolved
    assert (resolved.kernels, resolved.dtype, resolved.weights_dtype) == (name, "float32", "bfloat16")
    assert resolved.weight_format is not None
    assert (resolved.weight_format.storage, resolved.weight_format.activations) == ("bf16", "f32")
    reasons = dict(resolved.reasons)
    assert (
        "no matrix instructions" in reasons["dtype"]
        and "as the checkpoint stores them" in reasons["weights_dtype"]
    )
    # float32 held the matrices in four bytes, and the tied embeddings once more beside the packed head.
    before = total_weight_bytes(lower(plan.spec), memory_format("float32", "float32", WeightFormats(F32)))
    embeddings = plan.spec.vocab_size * plan.spec.hidden_size
    assert (before + 4 * embeddings) / plan.ledger.weight_bytes > 1.99
    assert {line.name: line.bytes for line in plan.ledger.weights}["head"] == 0


@pytest.mark.parametrize("name", parameters())
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_tokens_and_logprobs_are_those_of_float32_storage(restored: Restored, name: str, dtype: str) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=6, logprobs=2, prompt_logprobs=1)
    exact = restored(dtype)
    given = []
    # The same numbers in four bytes each.
    for folder in (exact, widened(exact, restored)):
        llm = LLM(
            str(folder),
            dtype="float32",
            ops_force=name,
            num_threads=1,
            kv_cache_memory="8MiB",
            show_progress=False,
        )
        outputs = llm.generate(["Once upon a time", "A fox"], params, use_tqdm=False)
        given.append(
            (
                llm.parts.resolved.weights_dtype,
                [(out.prompt_logprobs, out.outputs[0].token_ids, out.outputs[0].logprobs) for out in outputs],
            )
        )
    assert [stored for stored, _ in given] == [dtype, "float32"]
    assert given[0][1] == given[1][1]


def widened(folder: Path, restored: Restored) -> Path:
    """The same model with its tensors in float32."""
    files = needs.package("safetensors.torch")
    wide = restored("float32")
    tensors = files.load_file(folder / "model.safetensors")
    files.save_file({name: tensor.float() for name, tensor in tensors.items()}, wide / "model.safetensors")
    return wide


def test_stored_types_override_the_config(restored: Restored) -> None:
    for stored, named in (("float32", "bfloat16"), ("float16", "float32"), ("bfloat16", "float16")):
        resolved = surveyed(restored(stored, named=named), dtype="float32").resolved
        assert (resolved.dtype, resolved.weights_dtype) == ("float32", stored), named


def test_bfloat16_is_computed_only_where_the_set_has_instructions_for_it() -> None:
    for name in native.available_kernels():
        assert surveyed("tale", ops_force=name).resolved.dtype == (
            "float32" if name in FLOAT32_SETS else "bfloat16"
        )
    asked = surveyed("tale", ops_force="portable", dtype="bfloat16").resolved
    assert (asked.dtype, asked.weights_dtype) == ("bfloat16", "bfloat16")
    torch_path = surveyed("tale", ops_force="torch", dtype="float32").resolved
    assert (torch_path.dtype, torch_path.weights_dtype, torch_path.weight_format) == (
        "float32",
        "float32",
        None,
    )
