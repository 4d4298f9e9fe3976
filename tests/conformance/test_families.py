"""Every family against transformers on tiny random weights, through save_pretrained and our whole loading path."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.models.families import add_family, read_spec, registry, weight_names
from headrace.models.spec import ExpertsSpec, ModelSpec
from headrace.runner.torch_decoder import Decoder
from tests import needs
from tests.models import added_family
from tests.models.added_family import NEMOTRON

transformers = needs.lazily("transformers")

VOCAB = 131
LENGTH = 90
CHUNKS = ((0, 23), (23, 31), (31, 60), (60, 82))
"""Of a prompt, before eight steps of one token."""

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.15,  # large enough that every mistake shows in the logits
}


@dataclass(frozen=True)
class Case:
    """`family` is what the names of its classes in transformers begin with. They are imported when a test needs them:
    every worker collects these cases, and few run them."""

    family: str
    fields: dict[str, Any] = field(default_factory=dict)
    config: str = "Config"
    head: str = "ForCausalLM"

    def build(
        self, folder: Path, dtype: torch.dtype = torch.float32, **save: Any
    ) -> transformers.PreTrainedModel:
        """Save a seeded model to `folder` in `dtype`, and return what transformers loads from there in float32."""
        torch.manual_seed(7)
        config = getattr(transformers, f"{self.family}{self.config}")(**{**SIZES, **self.fields})
        kind = getattr(transformers, f"{self.family}{self.head}")
        model = kind(config).eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if (
                    "norm" in name or ".ln_" in name or name.endswith(("bias", "sinks", "A_log", "scale"))
                ):  # these start as ones and zeros, which hide mistakes
                    weight.add_(torch.randn_like(weight) * 0.3)
                if self.family.startswith("Gemma4") and name.endswith("q_norm.weight"):
                    weight.mul_(len(weight) ** -0.5)  # attention's scale is 1: trained norms hold it
            for name, buffer in model.named_buffers():
                if name.endswith(("correction_bias", "expert_bias")):
                    buffer.add_(torch.randn_like(buffer) * 0.3)
                if name.endswith("layer_scalar"):
                    buffer.copy_(torch.rand_like(buffer) + 0.5)
        model.to(dtype).save_pretrained(folder, **save)
        # Not model.float(): model.to(dtype) has rounded the rope frequencies too, which no checkpoint holds.
        loaded = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        made: transformers.PreTrainedModel = loaded.eval()
        return made


def llama(**fields: Any) -> Case:
    return Case("Llama", fields)


def mistral(**fields: Any) -> Case:
    return Case("Mistral", fields)


def qwen2(**fields: Any) -> Case:
    return Case("Qwen2", fields)


def qwen3(**fields: Any) -> Case:
    return Case("Qwen3", {"head_dim": 16, **fields})


def rope(kind: str, **fields: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, **fields}}


def mixtral(**fields: Any) -> Case:
    return Case("Mixtral", {"num_local_experts": 6, **fields})


def qwen2_moe(**fields: Any) -> Case:
    sizes = {"num_experts": 5, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40}
    return Case("Qwen2Moe", {**sizes, "num_experts_per_tok": 2, **fields})


def qwen3_moe(**fields: Any) -> Case:
    sizes = {"num_experts": 7, "moe_intermediate_size": 40, "num_experts_per_tok": 3, "head_dim": 16}
    return Case("Qwen3Moe", {**sizes, **fields})


HYBRID = {
    "initializer_range": 0.1,  # transformers takes chunks of 64 tokens together, which rounds differently
    "head_dim": 16, "num_experts": 0, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
}  # fmt: skip
MIXTURE = {
    "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40
}  # fmt: skip
HYBRID_FILE = {  # what files can say: values as wide as keys, every fourth layer attends
    **HYBRID, "num_hidden_layers": 5, "initializer_range": 0.08, "linear_key_head_dim": 16, "layer_types": None,
    "full_attention_interval": 4,
}  # fmt: skip
LLAMA4 = {
    "head_dim": 16, "num_hidden_layers": 5, "attention_chunk_size": 13, "floor_scale": 16, "intermediate_size": 40,
    "intermediate_size_mlp": 72, "num_local_experts": 5,
}  # fmt: skip
LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]

CASES = {
    "llama-gqa": llama(),
    "llama-mha": llama(num_key_value_heads=4),
    "llama-mqa": llama(num_key_value_heads=1),
    "llama-tied": llama(tie_word_embeddings=True),
    "llama-biases": llama(attention_bias=True, mlp_bias=True),
    "llama-head-dim": llama(head_dim=20),
    "llama-gelu": llama(hidden_act="gelu"),
    "llama-gelu-tanh": llama(hidden_act="gelu_pytorch_tanh"),
    "llama-theta": llama(**rope("default", rope_theta=500.0)),
    "llama-linear": llama(**rope("linear", factor=3.0)),
    # HF stretches its base by the length that it sees: it must see the whole context of the config
    "llama-dynamic": llama(max_position_embeddings=LENGTH // 3, **rope("dynamic", factor=3.0)),
    "llama-yarn": llama(**rope("yarn", factor=4.0, original_max_position_embeddings=64)),
    "llama-yarn-mscale": llama(
        **rope(
            "yarn",
            factor=8.0,
            original_max_position_embeddings=32,
            mscale=0.7,
            mscale_all_dim=1.2,
            beta_fast=16.0,
            beta_slow=2.0,
            truncate=False,
        )
    ),
    "llama-yarn-factor": llama(
        **rope("yarn", factor=2.0, original_max_position_embeddings=128, attention_factor=1.3)
    ),
    "llama-llama3": llama(
        **rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        )
    ),
    "mistral-window": mistral(sliding_window=17),
    "mistral-full": mistral(sliding_window=None),
    "mistral-head-dim": mistral(sliding_window=5, head_dim=24, num_key_value_heads=1),
    "qwen2-full": qwen2(),
    "qwen2-sliding": qwen2(use_sliding_window=True, sliding_window=13, max_window_layers=1),
    "qwen2-layer-types": qwen2(use_sliding_window=True, sliding_window=9, layer_types=LAYERS),
    "qwen2-tied": qwen2(tie_word_embeddings=True),
    "qwen3-full": qwen3(),
    "qwen3-bias-tied": qwen3(attention_bias=True, tie_word_embeddings=True, head_dim=32),
    "qwen3-layer-types": qwen3(use_sliding_window=True, sliding_window=11, layer_types=LAYERS),
    "qwen3-yarn": qwen3(**rope("yarn", factor=4.0, original_max_position_embeddings=64)),
    "mixtral-full": mixtral(),
    "mixtral-window": mixtral(sliding_window=17, num_experts_per_tok=3),
    "qwen2-moe-shared": qwen2_moe(),
    "qwen2-moe-normalized": qwen2_moe(norm_topk_prob=True, decoder_sparse_step=2),
    "qwen3-moe-normalized": qwen3_moe(norm_topk_prob=True),
    "qwen3-moe-some-layers": qwen3_moe(mlp_only_layers=[1], attention_bias=True),
}

GEMMA4: dict[str, Any] = {
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": 9,
    "num_hidden_layers": 4,
    "layer_types": [*LAYERS, "full_attention"],
    "vocab_size_per_layer_input": VOCAB,
}

CASES |= {
    "glm4-moe": Case(
        "Glm4Moe",
        {
            "head_dim": 16,
            "use_qk_norm": True,
            "attention_bias": True,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 48,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.7,
            "first_k_dense_replace": 1,
        },
    ),
    "gpt-oss": Case(
        "GptOss",
        {
            "head_dim": 16,
            "sliding_window": 9,
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "layer_types": LAYERS,
            **rope("yarn", factor=4.0, original_max_position_embeddings=64, truncate=False),
        },
    ),
    "ministral3": Case(
        "Ministral3",
        {
            "head_dim": 16,
            "sliding_window": None,
            **rope(
                "yarn",
                factor=4.0,
                original_max_position_embeddings=64,
                llama_4_scaling_beta=0.3,
                max_position_embeddings=256,
                mscale=1.0,
                mscale_all_dim=1.0,
            ),
        },
    ),
    "smollm3": Case("SmolLM3", {"no_rope_layer_interval": 2}),
    "smollm3-file": Case("SmolLM3", {"num_hidden_layers": 5}),  # every fourth layer without rope
    "smollm3-window": Case("SmolLM3", {"use_sliding_window": True, "sliding_window": 9}),
    "granite": Case(
        "Granite",
        {
            "embedding_multiplier": 6.0,
            "residual_multiplier": 0.3,
            "attention_multiplier": 0.2,
            "logits_scaling": 4.0,
        },
    ),
    "seed-oss": Case("SeedOss", {"head_dim": 16}),
    "gemma": Case("Gemma", {"head_dim": 16}),
    "gemma2": Case(
        "Gemma2",
        {
            "head_dim": 16,
            "sliding_window": 9,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 2.0,
            "query_pre_attn_scalar": 20,
        },
    ),
    "gemma2-file": Case(  # what files can say: queries scaled by the size of a head, every other layer slides
        "Gemma2",
        {
            "head_dim": 16,
            "sliding_window": 9,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 2.0,
            "query_pre_attn_scalar": 16,
        },
    ),
    "gemma3": Case(
        "Gemma3", {"head_dim": 16, "sliding_window": 9, "layer_types": LAYERS}, config="TextConfig"
    ),
    "gemma3-scaled": Case(
        "Gemma3",
        {
            "head_dim": 16,
            "query_pre_attn_scalar": 16,
            "sliding_window": 9,
            "layer_types": LAYERS,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 200.0},
            },
        },
        config="TextConfig",
    ),
    "gemma4": Case("Gemma4", {**GEMMA4, "hidden_size_per_layer_input": 0}, config="TextConfig"),
    "gemma4-keys-are-values": Case(
        "Gemma4",
        {
            **GEMMA4,
            "hidden_size_per_layer_input": 0,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "final_logit_softcapping": 2.0,
            "tie_word_embeddings": False,
        },
        config="TextConfig",
    ),
    "gemma4-shared": Case(
        "Gemma4",
        {
            **GEMMA4,
            "hidden_size_per_layer_input": 24,
            "num_hidden_layers": 5,
            "layer_types": [
                "sliding_attention",
                "full_attention",
                *["sliding_attention"] * 2,
                "full_attention",
            ],
            "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True,
            "final_logit_softcapping": 2.0,
            "initializer_range": 0.1,  # with more, transformers itself is 1e-4 away from float64
        },
        config="TextConfig",
    ),
    "gemma4-unified": Case(
        "Gemma4Unified",
        {
            **GEMMA4,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "final_logit_softcapping": 2.0,
        },
        config="TextConfig",
    ),
    "gemma4-experts": Case(
        "Gemma4",
        {
            **GEMMA4,
            "hidden_size_per_layer_input": 0,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "enable_moe_block": True,
            "num_experts": 6,
            "top_k_experts": 3,
            "moe_intermediate_size": 24,
            "final_logit_softcapping": 2.0,
        },
        config="TextConfig",
    ),
    "phi3": Case("Phi3", {"sliding_window": 21}),
    "phi3-longrope": Case(
        "Phi3",
        {
            "hidden_size": 64,
            "original_max_position_embeddings": 32,
            "partial_rotary_factor": 0.5,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10_000.0,
                "partial_rotary_factor": 0.5,
                "original_max_position_embeddings": 32,
                "short_factor": [1.0, 1.1, 1.2, 1.3],
                "long_factor": [1.0, 2.5, 4.0, 8.0],
            },
        },
    ),
    "olmo2": Case("Olmo2", {}),
    "olmo3": Case(
        "Olmo3",
        {"sliding_window": 9, "layer_types": LAYERS},
    ),
    "cohere2": Case(
        "Cohere2",
        {"sliding_window": 9, "layer_types": LAYERS, "logit_scale": 0.2},
    ),
    "glm": Case("Glm", {"head_dim": 16}),
    "glm4": Case("Glm4", {"head_dim": 16}),
    "starcoder2": Case("Starcoder2", {"sliding_window": 17}),
    "gpt-neox": Case("GPTNeoX", {"hidden_size": 64, "rotary_pct": 0.5}),
    "gpt-neox-serial": Case("GPTNeoX", {"hidden_size": 64, "use_parallel_residual": False}),
    "qwen3-next": Case("Qwen3Next", HYBRID),
    "qwen3-next-moe": Case(
        "Qwen3Next",
        {
            **HYBRID,
            **MIXTURE,
        },
    ),
    "qwen3.5": Case("Qwen3_5", HYBRID, config="TextConfig"),
    "qwen3.5-moe": Case(
        "Qwen3_5Moe",
        {
            **HYBRID,
            **MIXTURE,
        },
        config="TextConfig",
    ),
    "lfm2": Case(
        "Lfm2", {"layer_types": ["conv", "full_attention", "conv"], "conv_bias": True, "block_multiple_of": 8}
    ),
    "qwen3-next-file": Case("Qwen3Next", {**HYBRID_FILE, **MIXTURE}),
    "qwen3.5-file": Case("Qwen3_5", HYBRID_FILE, config="TextConfig"),
    "qwen3.5-moe-file": Case("Qwen3_5Moe", {**HYBRID_FILE, **MIXTURE}, config="TextConfig"),
    "lfm2-file": Case("Lfm2", {"layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 8}),
    "lfm2-moe": Case(
        "Lfm2Moe",
        {
            "layer_types": ["conv", "full_attention", "conv"],
            "num_dense_layers": 1,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
        },
    ),
    "llama4": Case("Llama4", LLAMA4, config="TextConfig"),
    "llama4-file": Case(  # what files can say: chunks that are longer than the prompt
        "Llama4",
        {**LLAMA4, "attention_chunk_size": 8192, "floor_scale": 8192, "interleave_moe_layer_step": 2},
        config="TextConfig",
    ),
    "llama4-dense-between": Case(
        "Llama4",
        {
            **LLAMA4,
            "use_qk_norm": False,
            "interleave_moe_layer_step": 2,
            **rope(
                "llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=1.0,
                original_max_position_embeddings=32,
            ),
        },
        config="TextConfig",
    ),
    "granite-4": Case(
        "GraniteMoeHybrid",
        {
            "num_local_experts": 0,
            "layer_types": ["full_attention"] * 3,
            "position_embedding_type": "rope",
            "shared_intermediate_size": 72,
            "mamba_n_heads": 4,
            "embedding_multiplier": 6.0,
            "residual_multiplier": 0.3,
            "attention_multiplier": 0.2,
            "logits_scaling": 4.0,
        },
    ),
    "bloom": Case(
        "Bloom", {"hidden_size": 96, "num_attention_heads": 6}
    ),  # no power of two: slopes take turns
    "mpt": Case("Mpt", {"max_seq_len": 256}),
    "gpt2": Case("GPT2", {"n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 256}, head="LMHeadModel"),
}

LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 64,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
    "n_group": 4,
    "topk_group": 2,
}


def yarn_mscale(one: float, all_dim: float) -> dict[str, Any]:
    return rope("yarn", factor=8.0, original_max_position_embeddings=32, mscale=one, mscale_all_dim=all_dim)


YARN_FILE = yarn_mscale(0.7, 0.7)  # what files can say: both alike, as published models have them

CASES |= {
    "deepseek-v2": Case("DeepseekV2", {**LATENT, "topk_method": "group_limited_greedy"}),
    "deepseek-v2-lite": Case(
        "DeepseekV2", {**LATENT, "q_lora_rank": None, "n_group": 1, "topk_group": 1, **YARN_FILE}
    ),
    "deepseek-v3": Case("DeepseekV3", {**LATENT, **yarn_mscale(0.7, 0.9)}),
    "deepseek-v3-file": Case("DeepseekV3", {**LATENT, **YARN_FILE}),
    "deepseek-v3-biases": Case("DeepseekV3", {**LATENT, "attention_bias": True, "rope_interleave": False}),
    "glm4-moe-lite": Case(
        "Glm4MoeLite",
        {**LATENT, "n_group": 1, "topk_group": 1, "mlp_layer_types": ["sparse", "dense", "sparse"]},
    ),
    "glm4-moe-lite-file": Case(
        "Glm4MoeLite",
        {**LATENT, "n_group": 1, "topk_group": 1, "mlp_layer_types": ["dense", "sparse", "sparse"]},
    ),
}
"""Each family with every feature of its own turned on."""

Open = Callable[..., Decoder]


def spec_of(folder: Path) -> ModelSpec:
    return read_spec(json.loads((folder / "config.json").read_text()))


def prompt(length: int = LENGTH, seed: int = 3) -> list[int]:
    return torch.randint(VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def expected_logits(model: transformers.PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0].float()


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).abs().max())


def architectures(names: Iterable[str]) -> set[str]:
    """Those of cases."""
    return {f"{CASES[name].family}{CASES[name].head}" for name in names}


def test_every_family_is_here() -> None:
    assert architectures(CASES) == registry.ARCHITECTURES.keys() - {"InternLM3ForCausalLM"}


@pytest.mark.parametrize("names", [("qkv_bias", "bias"), ("attention_bias", "mlp_bias")])
def test_internlm3_is_a_llama(names: tuple[str, str]) -> None:
    """transformers does not have it."""
    scaling = {"rope_scaling": {"rope_type": "dynamic", "factor": 6.0}, "rope_theta": 5e7}
    config = {**SIZES, "head_dim": 20, **scaling, "architectures": ["InternLM3ForCausalLM"]}
    biases = {"attention_bias": True, "mlp_bias": True}
    llama = read_spec({**config, **biases, "architectures": ["LlamaForCausalLM"]})
    ours = read_spec({**config, **dict.fromkeys(names, True)})
    assert replace(ours, family="llama") == llama and weight_names(ours) == weight_names(llama)


REFERENCE = (
    "llama-gqa", "llama-yarn-mscale", "mistral-window", "qwen3-layer-types", "qwen2-moe-shared", "gpt-oss", "gemma2",
    "gemma4-shared", "deepseek-v2", "qwen3-next-moe", "lfm2",
)  # fmt: skip
"""Of each op that families use, one with which the usual run tests the reference too."""


@pytest.mark.parametrize(
    ("name", "force"),
    [(name, "torch") for name in CASES]
    + [
        pytest.param(name, "reference", marks=() if name in REFERENCE else pytest.mark.long) for name in CASES
    ],
)
def test_logits_match(name: str, force: str, tmp_path: Path, open_decoder: Open, paged_run: Any) -> None:
    case = CASES[name]
    tokens = prompt()
    theirs = expected_logits(case.build(tmp_path), tokens)
    decoder = open_decoder(tmp_path, force=force)

    whole = paged_run(decoder).step({0: tokens})[0]
    assert distance(whole, theirs) < 1e-4

    run = paged_run(decoder, seed=5)
    parts = [run.step({0: tokens[at:end]})[0] for at, end in CHUNKS]
    parts += [run.step({0: [token]})[0] for token in tokens[CHUNKS[-1][1] :]]
    assert distance(torch.cat(parts), theirs) < 1e-4
    if all(layout.window is not None for layout in decoder.program.kv):
        assert run.total_dropped > 0


def test_a_family_from_outside_of_the_package(
    tmp_path: Path, open_decoder: Open, paged_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "FAMILIES", dict(registry.FAMILIES))
    add_family("NemotronForCausalLM", NEMOTRON)
    theirs = expected_logits(Case("Nemotron", {"head_dim": 16}).build(tmp_path), prompt())
    assert distance(paged_run(open_decoder(tmp_path)).step({0: prompt()})[0], theirs) < 1e-4
    source = Path(added_family.__file__).read_text()
    assert sum(bool(line.strip()) for line in source.splitlines()) < 40


@pytest.mark.parametrize("name", ["llama-gqa", "qwen3-layer-types"])
def test_mixed_batch_matches_each_sequence_alone(
    name: str, tmp_path: Path, open_decoder: Open, paged_run: Any
) -> None:
    model = CASES[name].build(tmp_path)
    sequences = {s: prompt(length, seed=s) for s, length in enumerate((40, 7, 63, 22))}
    theirs = {s: expected_logits(model, tokens) for s, tokens in sequences.items()}
    run = paged_run(open_decoder(tmp_path))
    run.step({0: sequences[0][:39], 1: sequences[1][:3]})
    run.step({2: sequences[2][:50], 1: sequences[1][3:6]})
    # one decodes, one continues a prompt, one starts: one batch
    last = run.step({1: sequences[1][6:], 2: sequences[2][50:], 0: sequences[0][39:], 3: sequences[3]})
    for s, logits in last.items():
        assert distance(logits, theirs[s][-len(logits) :]) < 1e-4


@pytest.mark.parametrize("name", ["llama-biases", "qwen3-bias-tied"])
def test_sharded_checkpoint(name: str, tmp_path: Path, open_decoder: Open, paged_run: Any) -> None:
    model = CASES[name].build(tmp_path, max_shard_size="30KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    tokens = prompt(20)
    ours = paged_run(open_decoder(tmp_path)).step({0: tokens})[0]
    assert distance(ours, expected_logits(model, tokens)) < 1e-4


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_checkpoint_converts_to_float32(
    dtype: str, tmp_path: Path, open_decoder: Open, paged_run: Any
) -> None:
    model = CASES["llama-gqa"].build(tmp_path, dtype=getattr(torch, dtype))
    decoder = open_decoder(tmp_path)
    assert spec_of(tmp_path).checkpoint_dtype == dtype
    tokens = prompt(30)
    assert distance(paged_run(decoder).step({0: tokens})[0], expected_logits(model, tokens)) < 1e-4


IN_BFLOAT16 = ("llama-gqa", "mistral-window", "qwen2-sliding", "qwen3-full", "gemma4-shared")
"""The usual run takes these."""


def bfloat16_cases() -> list[Any]:
    return [pytest.param(name, marks=() if name in IN_BFLOAT16 else pytest.mark.long) for name in CASES]


def narrow(case: Case) -> Case:
    """With weights so small that rounding them and what they multiply does not show in the logits."""
    return replace(case, fields={**case.fields, "initializer_range": 0.03})


def has_experts(folder: Path) -> bool:
    layers = spec_of(folder).layers
    return any(layer.beside is not None or isinstance(layer.feed_forward, ExpertsSpec) for layer in layers)


def check_bfloat16(ours: torch.Tensor, theirs: torch.Tensor, experts: bool) -> None:
    """Logits within 5e-2, and the same best token wherever it leads by more than twice the largest error.

    Where two experts of a mixture have nearly equal scores, rounding may decide between them, as it does in
    transformers' own bfloat16 run: a quarter of the rows may be further away.
    """
    errors = (ours - theirs).abs().amax(-1)
    error = errors.quantile(0.75) if experts else errors.max()
    assert error < 5e-2
    best = theirs.topk(2).values
    clear = ((best[:, 0] - best[:, 1]) > 2 * error) & (errors <= error)
    assert clear.any()
    assert torch.equal(ours.argmax(-1)[clear], theirs.argmax(-1)[clear])


@pytest.mark.parametrize("name", bfloat16_cases())
def test_bfloat16_run(name: str, tmp_path: Path, open_decoder: Open, paged_run: Any) -> None:
    model = narrow(CASES[name]).build(tmp_path, dtype=torch.bfloat16)
    tokens = prompt()
    theirs = expected_logits(model, tokens)
    ours = paged_run(open_decoder(tmp_path, dtype="bfloat16")).step({0: tokens})[0]
    check_bfloat16(ours, theirs, has_experts(tmp_path))


def test_old_rope_layout_reads_the_same(tmp_path: Path) -> None:
    CASES["llama-llama3"].build(tmp_path)
    new = spec_of(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    scaling = config.pop("rope_parameters")
    config["rope_theta"] = scaling.pop("rope_theta")
    config["rope_scaling"] = scaling
    path.write_text(json.dumps(config))
    assert spec_of(tmp_path) == new
    scaling["type"] = scaling.pop("rope_type")  # older still
    path.write_text(json.dumps(config))
    assert spec_of(tmp_path) == new
