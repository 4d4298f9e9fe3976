"""Quantised GGUF files: blocks hold what was computed, files hold the model, and what cannot be written is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from headrace.cli import main
from headrace.errors import HeadraceError, UnsupportedModel
from headrace.gguf.files import GGUFModel
from headrace.gguf.types import TYPES
from headrace.models.families import read_spec, weight_names
from headrace.models.gguf.blocks import dequantize
from headrace.models.gguf.encode import encode
from headrace.models.loader import load_weights
from headrace.models.source import resolve_model
from headrace.models.stored import stored_spec
from headrace.program.lower import lower
from headrace.quantize.gguf.grids import GRIDS, Blocks
from headrace.quantize.gguf.layouts import LAYOUTS, layout_of, metadata_of
from headrace.quantize.gguf.mixes import MIXES, find_mix, fitting
from headrace.quantize.gguf.rounding import gptq_blocks, nearest
from headrace.quantize.gguf.run import GGUFOptions, quantize_gguf
from headrace.quantize.gguf.vocabulary import vocabulary_metadata
from headrace.quantize.options import Report
from headrace.text.gguf.build import settings_from_metadata
from headrace.text.tokenizer import Tokenizer
from headrace.text.tokenizer_source import open_tokenizer
from tests.places import TALE
from tests.tiny_checkpoint import CONFIGS, write

TEXTS = [tuple((7 * text + 3 * at * at) % 2000 for at in range(24 + text)) for text in range(3)]


def lost(weight: torch.Tensor, found: Blocks, hessian: torch.Tensor) -> float:
    difference = found.dequantize() - weight
    return float(((difference @ hessian) * difference).sum() / ((weight @ hessian) * weight).sum())


KINDS = [
    pytest.param(kind, marks=() if kind in ("Q4_0", "Q5_1", "Q4_K", "Q6_K", "IQ4_XS") else pytest.mark.long)
    for kind in GRIDS
]


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_hold_what_was_computed_and_searching_pays(kind: str) -> None:
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(16, 256, generator=generator) * 0.05
    inputs = torch.randn(600, 256, generator=generator) * torch.rand(256, generator=generator).exp2()
    inputs = inputs + inputs.roll(1, 1)
    hessian = inputs.T @ inputs / 600
    grid, type = GRIDS[kind], TYPES[kind]
    plain = torch.from_numpy(dequantize(encode(weight.numpy(), type), type))
    searched = nearest(weight, grid, hessian.diagonal())
    compensated = gptq_blocks(weight, hessian, grid)
    for found in (searched, compensated):
        assert torch.equal(torch.from_numpy(dequantize(found.pack(), type)), found.dequantize())
    difference = plain - weight
    of_plain = float(((difference @ hessian) * difference).sum() / ((weight @ hessian) * weight).sum())
    assert lost(weight, searched, hessian) < of_plain
    assert lost(weight, compensated, hessian) < 0.9 * lost(weight, searched, hessian)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_zeros_of_one_weight_and_of_large_ones(kind: str) -> None:
    weight = torch.zeros(4, 256)
    weight[1, 7], weight[2] = 0.25, 3.0
    weight[3] = torch.linspace(-3e4, 3e4, 256)
    for found in (nearest(weight, GRIDS[kind]), nearest(weight, GRIDS[kind], torch.zeros(256))):
        after = torch.from_numpy(dequantize(found.pack(), TYPES[kind]))
        assert torch.equal(after, found.dequantize()) and bool(torch.isfinite(after).all())
        assert not after[0].any() and (after - weight).norm(dim=1)[1:].max() < 0.35 * 3e5
        assert abs(after[2] - 3.0).max() < 0.2


def made(model: str, folder: Path, mix: str, method: str = "gptq", **options: Any) -> Report:
    source = resolve_model(model)
    texts = options.pop("texts", TEXTS)
    return quantize_gguf(
        source, stored_spec(source), GGUFOptions(mix, method, **options), texts, folder, num_threads=1
    )


def matrices(model: str) -> Mapping[str, torch.Tensor]:
    source = resolve_model(model)
    found = load_weights(source, stored_spec(source), dtype=torch.float32)
    weights = {
        name: one.weight for name, one in found.matrices.items() if isinstance(one.weight, torch.Tensor)
    }
    return {**weights, **found.tables, **found.vectors}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tiny")
    write(folder, CONFIGS["mistral"] | {"num_hidden_layers": 2})
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(TALE / name, folder)
    return str(folder)


def test_a_file_is_the_model_with_its_tokenizer(tiny: str, tmp_path: Path) -> None:
    report = made(tiny, tmp_path / "out", "Q4_0")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["out-Q4_0.gguf"]
    before, after = matrices(tiny), matrices(str(tmp_path / "out"))
    assert set(report.errors) < before.keys() == after.keys()
    for name, weight in before.items():
        change = float((after[name] - weight).norm() / weight.norm())
        assert change < (0.2 if weight.dim() > 1 else 1e-7), (name, change)
    ours, theirs = open_tokenizer(tmp_path / "out" / "out-Q4_0.gguf"), open_tokenizer(tiny)
    text = "Once upon a time, there were 12 foxes.\n\nIt's naïve!"
    assert ours.encode(text) == theirs.encode(text)
    messages = [{"role": "user", "content": "Hello"}]
    assert ours.encode_chat(messages) == theirs.encode_chat(messages)


@pytest.mark.long
def test_errors_are_compensated_where_there_are_texts(tiny: str, tmp_path: Path) -> None:
    report = made(tiny, tmp_path / "out", "Q4_0")
    made(tiny, tmp_path / "rounded", "Q4_0", "rtn")
    rounded = made(tiny, tmp_path / "blind", "Q4_0", "rtn", texts=[])
    assert sum(report.errors.values()) < sum(rounded.errors.values())


class Killed(BaseException):
    pass


def test_a_killed_run_goes_on_and_gives_the_same_file(tiny: str, tmp_path: Path) -> None:
    source = resolve_model(tiny)

    def run(folder: Path, stop: int | None = None) -> bytes:
        steps = 0

        def shown(done: int, total: int) -> None:
            nonlocal steps
            assert done <= total
            steps += 1
            if steps == stop:
                raise Killed

        quantize_gguf(source, stored_spec(source), GGUFOptions("Q4_0"), TEXTS, folder, shown, 1)
        return (folder / f"{folder.name}-Q4_0.gguf").read_bytes()

    whole = run(tmp_path / "a" / "out")
    with pytest.raises(Killed):
        run(tmp_path / "b" / "out", 3)
    assert not (tmp_path / "b" / "out").exists()
    assert run(tmp_path / "b" / "out") == whole


def test_mixes_give_more_bits_where_it_hurts() -> None:
    mix = find_mix("q4_k_m")
    types = [mix.type_of(f"blk.{layer}.ffn_down.weight", 16) for layer in range(16)]
    assert types.count("Q6_K") == 8 and types[0] == types[15] == "Q6_K"
    assert mix.type_of("blk.0.attn_q.weight", 16) == "Q4_K" and mix.type_of("output.weight", 16) == "Q6_K"
    three = find_mix("Q3_K_M")
    assert [three.type_of(f"blk.{layer}.ffn_down.weight", 32) for layer in (1, 2, 31)] == [
        "Q5_K",
        "Q4_K",
        "Q4_K",
    ]
    fused = [find_mix(name).type_of("blk.1.attn_qkv.weight", 16) for name in ("q3_k_l", "q4_k_m", "q5_k_m")]
    assert fused == ["Q4_K", "Q5_K", "Q6_K"]
    assert find_mix("Q5_K").type_of("blk.3.ffn_down.weight", 16) == "Q5_K"
    assert [fitting(name, 96).name for name in ("Q4_K", "Q8_0", "IQ4_XS")] == ["Q5_0", "Q8_0", "IQ4_NL"]
    assert fitting("Q4_0", 40).name == "F16" and all(find_mix(name) for name in MIXES)


def test_what_cannot_be_written_is_refused_by_name(tiny: str, tmp_path: Path) -> None:
    write(tmp_path, CONFIGS["deepseek"])
    with pytest.raises(HeadraceError, match="'DeepseekV3ForCausalLM', which is not written as GGUF"):
        made(str(tmp_path), tmp_path / "out", "Q8_0")
    with pytest.raises(HeadraceError, match="no GGUF type 'Q9'"):
        made(tiny, tmp_path / "out", "Q9")
    with pytest.raises(HeadraceError, match="needs calibration texts"):
        made(tiny, tmp_path / "out", "Q4_0", texts=[])
    assert not (tmp_path / "out").exists()


SIZES = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "rope_theta": 10_000.0, "torch_dtype": "float32",
    "head_dim": 16, "hidden_act": "silu", "rms_norm_eps": 1e-5,
}  # fmt: skip

FAMILIES: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {
        "tie_word_embeddings": True,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "MistralForCausalLM": {"sliding_window": 32},
    "MixtralForCausalLM": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "Qwen2ForCausalLM": {},
    "Qwen3ForCausalLM": {
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    },
    "Qwen2MoeForCausalLM": {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64,
        "norm_topk_prob": False,
    },
    "Qwen3MoeForCausalLM": {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True
    },
    "SmolLM3ForCausalLM": {"no_rope_layers": [1, 1, 1]},
    "GraniteForCausalLM": {
        "attention_multiplier": 0.2, "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 2.0
    },
    "SeedOssForCausalLM": {"attention_bias": True, "attention_out_bias": False},
    "GemmaForCausalLM": {"hidden_act": "gelu_pytorch_tanh"},
    "Gemma2ForCausalLM": {
        "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 16, "sliding_window": 32,
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    },
    "Gemma3ForCausalLM": {
        "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 16, "sliding_window": 32,
        "rope_local_base_freq": 1000.0,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "Phi3ForCausalLM": {},
    "Olmo2ForCausalLM": {},
    "Olmo3ForCausalLM": {
        "sliding_window": 32, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]
    },
    "Cohere2ForCausalLM": {
        "logit_scale": 0.5, "sliding_window": 32, "layer_norm_eps": 1e-5,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "GlmForCausalLM": {"partial_rotary_factor": 0.5, "attention_bias": True},
    "Glm4ForCausalLM": {"partial_rotary_factor": 0.5},
    "Starcoder2ForCausalLM": {"norm_epsilon": 1e-5, "use_bias": True, "hidden_act": "gelu_pytorch_tanh"},
}  # fmt: skip


USUAL = ("LlamaForCausalLM", "Qwen3MoeForCausalLM", "Gemma3ForCausalLM")


def test_every_family_that_is_written_is_tested() -> None:
    assert FAMILIES.keys() == LAYOUTS.keys()


@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=() if name in USUAL else pytest.mark.long) for name in FAMILIES],
)
def test_a_file_holds_every_family(family: str, tmp_path: Path) -> None:
    """Matrices of 16 bits hold what they did, and everything else of the model is the same."""
    config = SIZES | {"architectures": [family]} | FAMILIES[family]
    spec = read_spec(config)
    rng = np.random.default_rng(0)
    tensors = {
        name: rng.standard_normal(shape).astype(np.float16).astype(np.float32)
        for name, shape in lower(spec, weight_names(spec), narrow=False).tensors().items()
    }
    (tmp_path / "model").mkdir()
    save_file(tensors, tmp_path / "model" / "model.safetensors")
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    made(str(tmp_path / "model"), tmp_path / "out", "F16", "rtn", texts=[])
    before, after = matrices(str(tmp_path / "model")), matrices(str(tmp_path / "out"))
    assert before.keys() == after.keys()
    for name, weight in before.items():
        torch.testing.assert_close(after[name], weight, rtol=1e-6, atol=1e-6, msg=name)
    opened = GGUFModel(next((tmp_path / "out").iterdir()))
    assert opened.metadata["general.architecture"] == LAYOUTS[family].name


def test_the_command_writes_a_file(tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "quantize",
        tiny,
        "-o",
        str(tmp_path / "out"),
        "--samples",
        "3",
        "--length",
        "32",
        "--num-threads",
        "1",
    ]
    for more, text in (
        (
            ["--format", "gguf:Q4_0", "--bits", "3"],
            "--bits does not go with --format gguf:Q4_0, whose types say how weights are stored: leave it out",
        ),
        (["--format", "gguf:Q4"], "there is no GGUF type 'Q4'"),
        (["--format", "gg"], "there is no format 'gg'"),
    ):
        assert main([*words, *more]) == 1
        assert text in " ".join(capsys.readouterr().err.split())
    assert (
        main(
            [
                *words[:2],
                "-o",
                str(tmp_path / "wide"),
                "--format",
                "gguf:F16",
                "--method",
                "rtn",
                "--samples",
                "0",
            ]
        )
        == 0
    )
    assert "0.00 bits" in capsys.readouterr().out
    assert main([*words, "--format", "gguf:q4_0"]) == 0
    assert "relative error of the products of each matrix" in capsys.readouterr().out
    assert (tmp_path / "out" / "out-Q4_0.gguf").is_file()


@pytest.mark.parametrize("words", [["--format", "gguf:Q4_K_M"], ["--format", "gguf:auto", "--size", "9KB"]])
def test_rows_that_no_block_fills_are_refused(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 1}
    (tmp_path / "model").mkdir()
    write(tmp_path / "model", CONFIGS["mistral"] | sizes)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TALE / name, tmp_path / "model")
    words = [*words, "--method", "auto"] if "gguf:auto" in words else words
    words += ["--samples", "3", "--length", "16", "--num-threads", "1", "-o", str(tmp_path / "out")]
    assert main(["quantize", str(tmp_path / "model"), *words]) == 1
    assert "their rows are not whole blocks of 32 weights" in " ".join(capsys.readouterr().err.split())
    assert [one.name for one in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("family", "normalizes"), [("Qwen2MoeForCausalLM", False), ("Qwen3MoeForCausalLM", True)]
)
def test_settings_that_llama_cpp_ignores_are_refused(family: str, normalizes: bool) -> None:
    config = SIZES | FAMILIES[family] | {"architectures": [family]}
    layout = layout_of(config, "m")
    keys = metadata_of(layout, config, read_spec(config), "m")
    assert keys[f"{layout.name}.expert_weights_norm"] is normalizes
    other = config | {"norm_topk_prob": not normalizes}
    with pytest.raises(UnsupportedModel, match=f"as if its norm_topk_prob were {str(normalizes).lower()}"):
        metadata_of(layout, other, read_spec(other), "m")


def test_settings_without_a_key_are_refused_before_texts_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "query_pre_attn_scalar": 20}
    more = {"head_dim": 16, "num_hidden_layers": 2, "tie_word_embeddings": True}
    (tmp_path / "model").mkdir()
    write(tmp_path / "model", CONFIGS["mistral"] | own | more)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TALE / name, tmp_path / "model")
    (tmp_path / "few.txt").write_text("A fox.")
    words = ["--format", "gguf:Q4_0", "--data", str(tmp_path / "few.txt"), "-o", str(tmp_path / "out")]
    assert main(["quantize", str(tmp_path / "model"), *words]) == 1
    assert "no key of the format holds its layers" in " ".join(capsys.readouterr().err.split())
    assert {one.name for one in tmp_path.iterdir()} == {"model", "few.txt"}


def test_every_token_that_ends_a_text_is_written(tmp_path: Path) -> None:
    """There are keys for three. More are kept where readers know them by their text, and else refused."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TALE / name, tmp_path)
    config = tmp_path / "generation_config.json"
    config.write_text(json.dumps({"eos_token_id": [1, 20, 30]}))
    metadata = vocabulary_metadata(tmp_path, 2048)
    assert settings_from_metadata(metadata).eos_ids == Tokenizer.from_folder(tmp_path).eos_ids == {1, 20, 30}
    config.write_text(json.dumps({"eos_token_id": [1, 20, 30, 40]}))
    with pytest.raises(UnsupportedModel, match=r"and the model in .* has tokens 30, 40 besides two others"):
        vocabulary_metadata(tmp_path, 2048)


@pytest.mark.parametrize("name", [*GRIDS])
def test_weights_below_any_step_become_zero(name: str) -> None:
    blocks = nearest(torch.linspace(-1e-39, 1e-39, 512).reshape(2, 256), GRIDS[name])
    assert not dequantize(blocks.pack(), TYPES[name]).any()
