"""Checkpoints of mixtures of experts: what they hold, how they are packed, and what is refused."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file

from headrace.errors import CheckpointError
from headrace.models.families import read_spec, weight_names
from headrace.models.loader import load_weights
from headrace.models.source import resolve_model
from headrace.models.stored import stored_spec
from headrace.program.lower import lower
from tests import needs

Tensors = dict[str, NDArray[np.float32]]

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "vocab_size": 50,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "mlp_only_layers": [0],
}
MIXTURE = "model.layers.1.mlp.experts"


def tensors_of(config: dict[str, Any]) -> Tensors:
    random = np.random.default_rng(0)
    spec = read_spec(config)
    shapes = lower(spec, weight_names(spec)).tensors()
    return {name: random.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def write(folder: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


def load(folder: Path) -> Any:
    source = resolve_model(str(folder))
    return load_weights(source, stored_spec(source), dtype=torch.float32)


def together(tensors: Tensors) -> Tensors:
    """As transformers 5 holds experts in memory."""
    found = {name: values for name, values in tensors.items() if not name.startswith(MIXTURE)}
    gate, up, down = (
        np.stack([tensors[f"{MIXTURE}.{e}.{part}_proj.weight"] for e in range(5)])
        for part in ("gate", "up", "down")
    )
    return found | {f"{MIXTURE}.gate_up_proj": np.concatenate((gate, up), 1), f"{MIXTURE}.down_proj": down}


def test_experts_are_in_their_order(tmp_path: Path) -> None:
    tensors = tensors_of(CONFIG)
    weights = load(write(tmp_path, CONFIG, tensors))
    for e in range(5):
        rows = np.concatenate([tensors[f"{MIXTURE}.{e}.{part}_proj.weight"] for part in ("gate", "up")])
        assert np.array_equal(weights.matrices["1.experts_gate_up"].weight[e].numpy(), rows)
    assert "0.gate_up" in weights.matrices and "0.router" not in weights.matrices


def test_tensors_of_all_experts_read_the_same(tmp_path: Path) -> None:
    tensors = tensors_of(CONFIG)
    one, other = (
        load(write(tmp_path / "a", CONFIG, tensors)),
        load(write(tmp_path / "b", CONFIG, together(tensors))),
    )
    for name in ("1.experts_gate_up", "1.experts_down", "1.router"):
        assert torch.equal(one.matrices[name].weight, other.matrices[name].weight)


def test_mixtral_by_the_names_of_transformers_5_reads_the_same(tmp_path: Path) -> None:
    config = {
        **CONFIG,
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": 5,
    }
    tensors = tensors_of(config)
    found = {
        name.replace(".block_sparse_moe.gate.", ".mlp.gate."): values for name, values in tensors.items()
    }
    for layer in range(2):
        gate, down, up = (
            np.stack(
                [
                    found.pop(f"model.layers.{layer}.block_sparse_moe.experts.{e}.{part}.weight")
                    for e in range(5)
                ]
            )
            for part in ("w1", "w2", "w3")
        )
        found[f"model.layers.{layer}.mlp.experts.gate_up_proj"] = np.concatenate((gate, up), 1)
        found[f"model.layers.{layer}.mlp.experts.down_proj"] = down
    one, other = load(write(tmp_path / "a", config, tensors)), load(write(tmp_path / "b", config, found))
    for name in ("1.experts_gate_up", "1.experts_down", "1.router", "0.experts_down"):
        assert torch.equal(one.matrices[name].weight, other.matrices[name].weight)


METHODS = (
    "gptq-4-asym",
    "gptq-4-act-order",
    "awq-gemm",
    "ct-int4-group",
    "ct-fp8-channel",
    "fp8-block",
    "ct-mxfp4",
)

LIES: dict[str, tuple[dict[str, Any], str]] = {
    "more choices than experts": (
        {"num_experts_per_tok": 6}, "num_experts_per_tok 6 in config.json is more than the 5 of num_experts"
    ),
    "no experts": ({"num_experts": 0}, "num_experts in config.json must be a whole number between 1 and 4096, got 0"),
    "endless experts": ({"num_experts": 10**12}, "num_experts in config.json must be a whole number between"),
    "no size": ({"moe_intermediate_size": None}, "config.json lacks the field moe_intermediate_size"),
    "layers that are not there": ({"mlp_only_layers": [7]}, "mlp_only_layers in config.json must be a list"),
    "one expert too many": ({"num_experts": 6}, r"model.layers.1.mlp.gate.weight has shape \[5, 48\]"),
    "one expert too few": ({"num_experts": 4}, r"model.layers.1.mlp.gate.weight has shape \[5, 48\]"),
    "another size": ({"moe_intermediate_size": 41}, rf"{MIXTURE}.0.gate_proj.weight has shape \[40, 48\]"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_a_config_that_lies_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    changes, said = LIES[name]
    folder = write(tmp_path, {**CONFIG, **changes}, tensors_of(CONFIG))
    with pytest.raises(CheckpointError, match=said) as raised:
        load(folder)
    assert "\n" not in str(raised.value)


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    tensors = tensors_of(CONFIG)
    del tensors[f"{MIXTURE}.3.up_proj.weight"]
    with pytest.raises(CheckpointError, match=f"lacks tensor {MIXTURE}.3.up_proj.weight"):
        load(write(tmp_path, CONFIG, tensors))


@pytest.mark.parametrize("shape", [(), (5,), (5, 81, 48)])
def test_a_tensor_that_cannot_hold_all_experts_is_refused(shape: tuple[int, ...], tmp_path: Path) -> None:
    tensors = together(tensors_of(CONFIG)) | {f"{MIXTURE}.gate_up_proj": np.zeros(shape, np.float32)}
    with pytest.raises(CheckpointError, match=r"gate_up_proj' has shape .*, which holds no experts"):
        load(write(tmp_path, CONFIG, tensors))


@pytest.mark.parametrize("quantization", [None, "int8", "int4-g32-asym", "nf4", "fp8", "mxfp4", "q8_0"])
def test_packed_as_planned_and_the_same_from_a_packed_folder(
    quantization: str | None, tmp_path: Path
) -> None:
    """The bytes of everything, and every bit of the log-probabilities."""
    needs.native()
    from headrace import LLM, SamplingParams
    from headrace.build import pack
    from headrace.config import EngineConfig
    from tests.plan.test_arena import check

    config = {
        **CONFIG,
        "vocab_size": 2048,
        "hidden_size": 64,
        "moe_intermediate_size": 64,
        "intermediate_size": 96,
    }
    tensors = {name: values * np.float32(0.2) for name, values in tensors_of(config).items()}
    folder = write(tmp_path / "source", config, tensors)
    options: dict[str, Any] = {
        "tokenizer": "tale",
        "quantization": quantization,
        "num_threads": 1,
        "max_model_len": 64,
    }
    check(str(folder), options)
    pack(EngineConfig(str(folder), **options), tmp_path / "packed")
    greedy = SamplingParams(max_tokens=8, temperature=0.0, logprobs=2)
    found = []
    for model in (folder, tmp_path / "packed"):
        llm = LLM(str(model), show_progress=False, **options)
        outputs = llm.generate([[5, 6, 7], [900, 3]], greedy, use_tqdm=False)
        found.append([one.outputs[0].logprobs for one in outputs])
    assert found[0] == found[1]


@pytest.mark.parametrize("method", METHODS)
def test_experts_of_codes_are_what_torch_decodes(method: str, tmp_path: Path) -> None:
    """Each expert is quantised by itself; codes are kept where all experts have one format."""
    needs.native()
    from headrace import LLM, SamplingParams
    from tests.models.quantized.models import quantize
    from tests.models.quantized.packers import CASES

    sizes = {"hidden_size": 128, "moe_intermediate_size": 128, "intermediate_size": 128, "head_dim": 32}
    config = {**CONFIG, **sizes, "vocab_size": 2048}
    folder = write(tmp_path, config, {k: v * np.float32(0.1) for k, v in tensors_of(config).items()})
    quantize(folder, _Nothing(), CASES[method])
    scored = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=5)
    found = []
    for force in (None, "torch"):
        llm = LLM(
            str(folder), tokenizer="tale", dtype="float32", ops_force=force, num_threads=1, max_model_len=64,
            show_progress=False,
        )  # fmt: skip
        (output,) = llm.generate([[5, 6, 7, 900, 31]], scored, use_tqdm=False)
        assert output.prompt_logprobs is not None
        found.append(
            [
                {token: one.logprob for token, one in entry.items()}
                for entry in output.prompt_logprobs
                if entry
            ]
        )
    for ours, theirs in zip(*found, strict=True):
        shared = ours.keys() & theirs.keys()
        assert shared and all(abs(ours[token] - theirs[token]) < 0.1 for token in shared)


class _Nothing:
    """In place of a model of transformers and of its tensors, whose weights `quantize` changes."""

    def state_dict(self) -> dict[str, _Nothing]:
        return defaultdict(_Nothing)

    def copy_(self, weights: torch.Tensor) -> None:
        pass
