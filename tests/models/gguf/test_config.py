"""GGUF metadata as specs: what is read, and what is refused by name."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.core.types import Retention
from headrace.errors import CheckpointError, ModelError, UnsupportedModel
from headrace.models.families import FAMILIES, read_spec
from headrace.models.gguf.architectures import ARCHITECTURES
from headrace.models.gguf.checkpoint import GGUFCheckpoint
from headrace.models.rope import inverse_frequencies
from headrace.models.spec import ModelSpec
from tests.gguf_bytes import HIDDEN, LAYERS, VOCAB, File, Tensor, model, u32
from tests.gguf_files import LAYOUTS


def spec_of(folder: Path, file: File) -> ModelSpec:
    opened = GGUFCheckpoint(file.write(folder / "m.gguf"))
    return read_spec(opened.config, opened.generation_config)


def changed(arch: str = "llama", keys: dict[str, Any] | None = None, **options: Any) -> File:
    """A tiny model with other metadata, by keys after the architecture's name; None leaves a key out."""
    file = model(arch, **options)
    metadata = dict(file.metadata)
    for key, value in (keys or {}).items():
        name = key if key.startswith(("general.", "tokenizer.")) else f"{arch}.{key}"
        metadata[name] = value
    file.metadata = {key: value for key, value in metadata.items() if value is not None}
    return file


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_every_architecture(arch: str, tmp_path: Path) -> None:
    spec = spec_of(tmp_path, changed(arch))
    mixer, wide = spec.layers[0].mixer, spec.layers[0].feed_forward
    assert (spec.family, spec.hidden_size, spec.vocab_size, len(spec.layers)) == (arch, HIDDEN, VOCAB, LAYERS)
    assert (mixer.num_heads, mixer.num_kv_heads, mixer.head_dim, mixer.window) == (4, 2, 8, None)
    assert (wide.intermediate_size, wide.bias, wide.activation) == (64, False, "silu")
    assert (mixer.qkv_bias, mixer.out_bias, mixer.qk_norm is not None) == (
        arch == "qwen2",
        False,
        arch == "qwen3",
    )
    assert (spec.max_position, spec.bos_id, spec.eos_ids, spec.tie_embeddings) == (128, 1, (2,), False)
    assert spec.norm.eps == pytest.approx(1e-5) and mixer.rope.theta == 10_000.0
    assert (spec.checkpoint_dtype, mixer.rope.kind) == ("float32", "default")


def test_every_architecture_is_compared_with_llamacpp() -> None:
    written = {LAYOUTS[layout].arch for layout in LAYOUTS}
    assert set(ARCHITECTURES) == written
    assert {one.family for one in ARCHITECTURES.values()} <= FAMILIES.keys()


def test_tensors_decide_about_ties_and_biases(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, model(tied=True, biases=True))
    assert spec.tie_embeddings and spec.layers[1].mixer.qkv_bias and spec.layers[1].mixer.out_bias
    assert spec.layers[0].feed_forward.bias


@pytest.mark.parametrize(
    ("kind", "dtype"), [(0, "float32"), (1, "float16"), (30, "bfloat16"), (2, "float32"), (8, "float32")]
)
def test_the_type_of_matrices(kind: int, dtype: str, tmp_path: Path) -> None:
    assert spec_of(tmp_path, model(kind=kind)).checkpoint_dtype == dtype


def test_head_sizes_of_their_own(tmp_path: Path) -> None:
    keys = {"attention.key_length": 16, "attention.value_length": 16, "rope.dimension_count": 16}
    assert spec_of(tmp_path, changed("qwen3", keys)).layers[0].mixer.head_dim == 16


def test_values_a_layer_that_are_all_equal(tmp_path: Path) -> None:
    keys = {"attention.head_count_kv": [2, 2], "feed_forward_length": [64, 64]}
    assert spec_of(tmp_path, changed(keys=keys)).layers[0].mixer.num_kv_heads == 2


@pytest.mark.parametrize(
    ("keys", "kind", "factor", "longest"),
    [
        ({"rope.scaling.factor": 4.0}, "linear", 4.0, 512),  # linear is the type unless another is given
        ({"rope.scale_linear": 2.0}, "linear", 2.0, 256),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 1.0}, "default", 1.0, 128),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, "default", 1.0, 128),
        ({"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
          "rope.scaling.original_context_length": 32}, "yarn", 4.0, 128),
    ],
)  # fmt: skip
def test_rope_scaling(keys: dict[str, Any], kind: str, factor: float, longest: int, tmp_path: Path) -> None:
    spec = spec_of(tmp_path, changed(keys={"rope.freq_base": 5e5, **keys}))
    rope = spec.layers[0].mixer.rope
    assert (rope.kind, rope.factor, rope.theta, spec.max_position) == (kind, factor, 5e5, longest)


def test_yarn_settings(tmp_path: Path) -> None:
    keys = {
        "rope.scaling.type": "yarn", "rope.scaling.factor": 2.0, "rope.scaling.yarn_beta_fast": 16.0,
        "rope.scaling.yarn_beta_slow": 2.0, "rope.scaling.yarn_attn_factor": 1.25,
    }  # fmt: skip
    rope = spec_of(tmp_path, changed(keys=keys)).layers[0].mixer.rope
    assert (rope.beta_fast, rope.beta_slow, rope.attention_factor) == (16.0, 2.0, 1.25)
    assert rope.original_max_position == 128


def with_factors(data: list[float], shape: tuple[int, ...] = (4,), kind: int = 0) -> File:
    file = changed(keys={"rope.freq_base": 100.0})
    raw = struct.pack(f"<{len(data)}f", *data)
    file.tensors = {**dict(file.tensors), "rope_freqs.weight": Tensor(shape, kind, raw)}
    return file


def test_rope_factors_divide_the_frequencies(tmp_path: Path) -> None:
    rope = spec_of(tmp_path, with_factors([1.0, 1.5, 4.0, 8.0])).layers[0].mixer.rope
    plain = 100.0 ** (-np.arange(0, 8, 2) / 8)
    frequencies, factor = inverse_frequencies(rope)
    assert np.allclose(frequencies, plain / [1.0, 1.5, 4.0, 8.0], rtol=1e-15) and factor == 1.0
    assert rope.kind == "factors" and "rope_freqs.weight" not in list(
        GGUFCheckpoint(tmp_path / "m.gguf").names()
    )


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (with_factors([1.0] * 5, (5,)), "rope_freqs.weight in m.gguf must hold 4 floats"),
        (with_factors([1.0] * 4, (2, 2)), "must hold 4 floats"),
        (with_factors([1.0, 0.0, 1.0, 1.0]), "rope_freqs.weight in m.gguf must hold numbers between"),
        (with_factors([1.0, float("nan"), 1.0, 1.0]), "rope_freqs.weight .* numbers between"),
        (with_factors([1.0, float("inf"), 1.0, 1.0]), "rope_freqs.weight .* numbers between"),
    ],
)
def test_bad_rope_factors(file: File, words: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=words):
        spec_of(tmp_path, file)


def test_a_sliding_window(tmp_path: Path) -> None:
    mixer = spec_of(tmp_path, changed(keys={"attention.sliding_window": 48})).layers[0].mixer
    assert (mixer.retention, mixer.window) == (Retention.WINDOW, 48)
    whole = spec_of(tmp_path, changed(keys={"attention.sliding_window": 128})).layers[0].mixer
    assert whole.window is None


def test_special_tokens_and_sampling(tmp_path: Path) -> None:
    keys = {
        "tokenizer.ggml.bos_token_id": 2**32 - 1, "tokenizer.ggml.eot_token_id": 7,
        "tokenizer.ggml.eom_token_id": VOCAB, "general.sampling.temp": 0.6, "general.sampling.top_k": 20,
        "general.sampling.top_p": 0.95, "general.sampling.penalty_repeat": 1.1,
    }  # fmt: skip
    opened = GGUFCheckpoint(changed(keys=keys).write(tmp_path / "m.gguf"))
    assert opened.generation_config == {
        "eos_token_id": [2, 7], "temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.1,
    }  # fmt: skip
    spec = read_spec(opened.config, opened.generation_config)
    assert (spec.bos_id, spec.eos_ids) == (None, (2, 7))


GEMMA4 = {"attention.key_length_swa": 8, "attention.sliding_window": 16}


def gemma4(keys: dict[str, Any]) -> File:
    return changed("gemma4", {**GEMMA4, **keys})


def test_sizes_by_layer(tmp_path: Path) -> None:
    keys = {"attention.head_count_kv": [2, 4], "attention.sliding_window_pattern": [True, False]}
    keys["feed_forward_length"] = [64, 64]
    spec = spec_of(tmp_path, gemma4(keys))
    assert [(layer.mixer.num_kv_heads, layer.mixer.window) for layer in spec.layers] == [(2, 16), (4, None)]


@pytest.mark.parametrize(("window", "chunked"), [(None, [True, True]), (0, [False, False])])
def test_chunks_that_files_of_llama_4_do_not_state(
    window: int | None, chunked: list[bool], tmp_path: Path
) -> None:
    sizes = {"expert_count": 4, "expert_used_count": 1, "expert_feed_forward_length": 16}
    spec = spec_of(tmp_path, changed("llama4", {**sizes, "attention.sliding_window": window}))
    assert [layer.mixer.chunked for layer in spec.layers] == chunked
    assert all(layer.mixer.rope is not None for layer in spec.layers)


REFUSED: dict[str, tuple[File, str]] = {
    "widths of layers": (gemma4({"feed_forward_length": [64, 96]}), "differs between layers otherwise than"),
    "other sliding values": (gemma4({"attention.value_length_swa": 16}), "value_length_swa 16 in m.gguf"),
    "other architecture": (
        changed(keys={"general.architecture": "falcon"}),
        "model of architecture 'falcon', which is not supported; known are llama, mistral3, qwen2, qwen3",
    ),
    "adapter": (
        changed(keys={"general.type": "adapter"}),
        r"m.gguf is an adapter \(LoRA\), which needs its base model",
    ),
    "images": (
        changed(keys={"general.architecture": "clip", "general.type": "mmproj"}),
        "mmproj with architecture 'clip'",
    ),
    "experts": (changed("qwen2", {"expert_count": 8}), "expert_count 8 in m.gguf is not supported, only 0"),
    "soft cap": (changed(keys={"attn_logit_softcapping": 50.0}), "attn_logit_softcapping 50.0"),
    "partial rope": (changed(keys={"rope.dimension_count": 4}), "rope.dimension_count 4 in m.gguf differs"),
    "other values": (changed(keys={"attention.value_length": 16}), "attention.value_length 16"),
    "longrope": (changed(keys={"rope.scaling.type": "longrope"}), "rope.scaling.type 'longrope'"),
    "layers differ": (
        changed(keys={"attention.head_count_kv": [2, 4]}),
        "llama.attention.head_count_kv in m.gguf differs between layers",
    ),
    "window of qwen2": (
        changed("qwen2", {"attention.sliding_window": 16}),
        "sliding window of 16 tokens, which is not supported with Qwen2ForCausalLM",
    ),
    "log multiplier": (changed(keys={"rope.scaling.yarn_log_multiplier": 0.1}), "yarn_log_multiplier"),
}

BAD: dict[str, tuple[File, str]] = {
    "heads of fewer layers": (
        gemma4({"attention.head_count_kv": [2]}),
        "gemma4.attention.head_count_kv in m.gguf must be a list of 2 whole numbers between 1 and",
    ),
    "heads that are truth values": (gemma4({"attention.head_count_kv": [True, True]}), "must be a whole number"),
    "all layers share": (gemma4({"attention.shared_kv_layers": 2}), "shared_kv_layers .* between 0 and 1"),
    "no embeddings of each layer": (
        gemma4({"embedding_length_per_layer_input": 8}),
        "m.gguf lacks the matrix per_layer_token_embd.weight",
    ),
    "no architecture": (changed(keys={"general.architecture": None}), "lacks the key general.architecture"),
    "architecture is a number": (changed(keys={"general.architecture": 3}), "general.architecture .* must be text"),
    "no layers": (changed(keys={"block_count": None}), "m.gguf lacks the field llama.block_count"),
    "more layers than tensors": (
        changed(keys={"block_count": 1000}),
        r"m.gguf states 1000 layers, but holds \d+ tensors",
    ),
    "many layers": (changed(keys={"block_count": 2**31}), "llama.block_count in m.gguf must be a whole number"),
    "text": (changed(keys={"embedding_length": "32"}), "llama.embedding_length in m.gguf must be a whole number"),
    "no heads": (changed(keys={"attention.head_count": 0}), "llama.attention.head_count .* between 1 and"),
    "odd heads": (changed(keys={"attention.head_count": 5}), "must be a multiple of head_count 5"),
    "no eps": (changed(keys={"attention.layer_norm_rms_epsilon": None}), "layer_norm_rms_epsilon"),
    "eps is NaN": (changed(keys={"attention.layer_norm_rms_epsilon": float("nan")}), "must be a number"),
    "theta": (changed(keys={"rope.freq_base": float("inf")}), "llama.rope.freq_base in m.gguf must be a number"),
    "factor": (changed(keys={"rope.scaling.factor": 0.5}), "rope scaling factor 0.5; 1 is the least"),
    "token id": (changed(keys={"tokenizer.ggml.bos_token_id": "1"}), "bos_token_id .* must be a whole number"),
    "no embeddings": (File(dict(model().metadata), {"x": Tensor((4,))}), "lacks the matrix token_embd.weight"),
    "kv heads": (changed(keys={"attention.head_count_kv": 3}), "must be a multiple of num_key_value_heads 3"),
    "context": (changed(keys={"context_length": u32(2**32 - 1)}), "llama.context_length"),
}  # fmt: skip


@pytest.mark.parametrize("name", [*REFUSED, *BAD])
def test_refusals(name: str, tmp_path: Path) -> None:
    file, words = (REFUSED | BAD)[name]
    error: type[ModelError] = UnsupportedModel if name in REFUSED else CheckpointError
    with pytest.raises(error, match=words) as caught:
        spec_of(tmp_path, file)
    assert len(str(caught.value)) < 600 and "\n" not in str(caught.value)
