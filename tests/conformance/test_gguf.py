"""Models as GGUF files against transformers, and the bundled model in eight types against the weights they hold."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from headrace import LLM, RequestOutput, SamplingParams
from headrace.build import survey
from headrace.config import EngineConfig
from headrace.models.families.registry import ARCHITECTURES
from headrace.runner.torch_decoder import Decoder
from tests import needs
from tests.conformance.test_families import CASES, architectures, distance, expected_logits, prompt
from tests.gguf_files import rounded, write_gguf
from tests.places import TALE

gguf = needs.package("gguf")

Open = Callable[..., Decoder]

FAMILIES = (
    "llama-gqa", "llama-mqa", "llama-tied", "llama-biases", "llama-head-dim", "llama-theta", "llama-linear",
    "llama-yarn", "llama-yarn-factor", "llama-llama3", "mistral-window", "mistral-full", "mistral-head-dim",
    "qwen2-full", "qwen2-tied", "qwen3-full", "qwen3-bias-tied", "qwen3-yarn", "ministral3", "smollm3-file", "granite",
    "seed-oss", "gemma", "gemma2-file", "gemma3-scaled",
    "gemma4", "gemma4-keys-are-values", "gemma4-shared", "gemma4-unified", "gemma4-experts", "phi3",
    "phi3-longrope", "olmo2", "olmo3", "cohere2", "glm",
    "glm4", "starcoder2", "gpt-neox", "gpt-neox-serial", "gpt2", "gpt-oss",
    "mixtral-full", "mixtral-window", "qwen2-moe-shared", "qwen3-moe-normalized",
    "deepseek-v2", "deepseek-v2-lite", "deepseek-v3-file", "glm4-moe-lite-file", "glm4-moe",
    "qwen3-next-file", "qwen3.5-file", "qwen3.5-moe-file", "lfm2-file", "lfm2-moe",
    "llama4-file", "bloom", "mpt", "granite-4",
)  # fmt: skip

FLOATS = ("F32", "F16", "BF16")
BLOCKS = (
    "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "Q6_K", "Q5_K", "Q4_K", "Q3_K", "Q2_K", "IQ4_NL", "IQ4_XS", "MXFP4",
)  # fmt: skip

# Block types are decoded, packed and multiplied one by one in tests/models/gguf and tests/native. Of what they share
# here, the usual run takes blocks of 32, super-blocks with minima, and a table with scales of eight bits.
USUAL = ("F32", "F16", "BF16", "Q8_0", "Q4_K", "MXFP4")

WITH_MINIMA = ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K")
"""Types whose codes meet activations of 8 bits only."""


def kinds(*names: str) -> Any:
    marks = {name: () if name in USUAL else pytest.mark.long for name in names}
    return pytest.mark.parametrize("kind", [pytest.param(name, marks=mark) for name, mark in marks.items()])


PROMPTS = ["Once upon a time", "The little dog", "Anna and Tom went to the"]
GREEDY = SamplingParams(max_tokens=24, temperature=0.0, logprobs=1)


def test_every_family_is_here() -> None:
    """InternLM 3 is not in transformers, and its GGUF files say that they are Llama's."""
    assert architectures(FAMILIES) == ARCHITECTURES.keys() - {"InternLM3ForCausalLM"}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_matches_transformers(
    name: str, tmp_path: Path, open_decoder: Open, paged_run: Any
) -> None:
    model = CASES[name].build(tmp_path)
    path = write_gguf(tmp_path, tmp_path / "m.gguf", "F32")
    tokens = prompt()
    ours = paged_run(open_decoder(path)).step({0: tokens})[0]
    assert distance(ours, expected_logits(model, tokens)) < 1e-4


def folder_of_floats(folder: Path, choose: str | Callable[[str], str]) -> Path:
    """tale, its matrices rounded to the type (that of a tensor's name) by the package gguf, as a folder of float32."""
    folder.mkdir()
    tensors = {}
    for name, tensor in load_file(TALE / "model.safetensors").items():
        values = tensor.float().numpy()
        if values.ndim > 1:
            kind = choose if isinstance(choose, str) else choose(name)
            number = gguf.GGMLQuantizationType[kind]
            with np.errstate(all="ignore"):
                values = gguf.quants.dequantize(rounded(values, kind), number)
        tensors[name] = torch.from_numpy(np.array(values, dtype=np.float32))
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((TALE / "config.json").read_text()) | {"torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def generate(model: Path, **options: Any) -> list[RequestOutput]:
    llm = LLM(
        str(model),
        tokenizer="tale",
        dtype="float32",
        num_threads=1,
        max_num_seqs=4,
        show_progress=False,
        **options,
    )
    return llm.generate(PROMPTS, GREEDY, use_tqdm=False)


TEXT = "Once upon a time there was a little dog who wanted a drum. He asked his friend, the duck, for help."
TEXTS = (
    TEXT + " The duck said that a drum needs a skin and a hoop, and that the miller might have both. So they walked "
    "along the river until the mill came in sight, and the wheel turned and turned in the sun.",
    "Anna and Tom went to the market to buy apples. The old man gave them three red ones and one green one for their "
    "mother, who was ill. On the way home it began to rain, and they hid under a tree with a big white bird.",
    "The fox looked at the moon and thought that it was a cheese. He jumped and jumped, but he could not reach it. "
    "Then the cat came and laughed at him, and told him that nobody can eat the moon.",
)  # fmt: skip


def distributions(model: Path, texts: Sequence[str] = (TEXT,), **options: Any) -> list[dict[int, float]]:
    """The log-probabilities of the 20 most likely tokens after each token of stories."""
    llm = LLM(str(model), tokenizer="tale", dtype="float32", num_threads=1, show_progress=False, **options)
    found: list[dict[int, float]] = []
    for out in llm.generate([*texts], SamplingParams(max_tokens=1, prompt_logprobs=20), use_tqdm=False):
        assert out.prompt_logprobs is not None
        found += [
            {token: one.logprob for token, one in entry.items()} for entry in out.prompt_logprobs if entry
        ]
    return found


def divergence(expected: list[dict[int, float]], found: list[dict[int, float]]) -> float:
    """The mean Kullback-Leibler divergence, over the tokens that both lists name."""
    each = [
        sum(math.exp(p) * (p - there[token]) for token, p in here.items() if token in there)
        for here, there in zip(expected, found, strict=True)
    ]
    return abs(float(np.mean(each)))


def seen(outputs: list[RequestOutput]) -> list[tuple[list[int], list[Mapping[int, Any]]]]:
    return [(list(out.outputs[0].token_ids), list(out.outputs[0].logprobs or [])) for out in outputs]


@kinds(*FLOATS, *BLOCKS)
def test_tale_in_every_type(kind: str, tmp_path: Path) -> None:
    """The same tokens and bits of log-probabilities as from a checkpoint of the numbers that the file holds."""
    path = write_gguf(TALE, tmp_path / "tale.gguf", kind)
    # Where the kernels keep codes, activations are rounded too.
    options = {"ops_force": "torch"} if kind in BLOCKS else {}
    floats = folder_of_floats(tmp_path / "floats", kind)
    assert seen(generate(path, **options)) == seen(generate(floats, **options))


@kinds(*BLOCKS)
def test_blocks_are_kept(kind: str, tmp_path: Path) -> None:
    """Distributions differ from those of the same weights as floats by as much as activations are rounded."""
    needs.native()
    path = write_gguf(TALE, tmp_path / "tale.gguf", kind)
    floats = distributions(folder_of_floats(tmp_path / "floats", kind))
    for quantization in (None, "a16"):
        config = EngineConfig(model=str(path), dtype="float32", quantization=quantization)
        formats = survey(config).resolved.weight_formats
        assert formats is not None
        if quantization == "a16" and kind in WITH_MINIMA:
            assert formats.decoded and not formats.kept
            continue
        (name,) = {one.name for one in formats.all} - {"f32"}
        assert name == kind.lower() if quantization is None else "-a16" in name
        assert len(formats.kept) == 4 * 6 + 1
        assert divergence(floats, distributions(path, quantization=quantization)) < 1e-3


@pytest.mark.parametrize("kind", ["F32", "Q4_K", "Q8_0"])
def test_what_keys_and_values_in_16_bits_cost(kind: str, tmp_path: Path) -> None:
    """Less than codes and their activations do, but not nothing: so they are an option. -s prints the figures."""
    needs.native()
    exact = distributions(folder_of_floats(tmp_path / "floats", kind), TEXTS, kv_cache_dtype="float32")
    path = write_gguf(TALE, tmp_path / "tale.gguf", kind)
    wide, narrow = (
        divergence(exact, distributions(path, TEXTS, kv_cache_dtype=kv)) for kv in ("float32", "bfloat16")
    )
    print(f"{kind}: from the exact weights {wide:.1e} with KV in float32, {narrow:.1e} in bfloat16")
    assert narrow < (2e-4 if kind == "F32" else 1e-3)


def test_mixed_types_in_split_files(tmp_path: Path) -> None:
    """q, k and v of one layer differ, as in files of the kind Q4_K_M."""
    mix = {"attn_q": "Q8_0", "attn_k": "Q4_0", "attn_v": "Q5_1", "ffn_down": "F16", "token_embd": "BF16"}

    def choose(name: str) -> str:
        return mix.get(name.removesuffix(".weight").rsplit(".", 1)[-1], "Q4_1")

    whole = write_gguf(TALE, tmp_path / "tale.gguf", choose)
    write_gguf(TALE, tmp_path / "split.gguf", choose, split_max_tensors=20)
    parts = sorted(tmp_path.glob("split-0*.gguf"))
    assert len(parts) == 3
    assert seen(generate(parts[1])) == seen(generate(whole))


@pytest.mark.parametrize(("gate", "up"), [("Q4_K", "Q6_K"), ("Q5_1", "Q4_0"), ("F16", "Q8_0")])
def test_gate_and_up_of_different_types(gate: str, up: str, tmp_path: Path) -> None:
    """Each keeps its type; both paths compute with the weights that the file holds."""
    needs.native()

    def choose(name: str) -> str:
        return gate if "gate" in name else up if "up" in name else "F32"

    path = write_gguf(TALE, tmp_path / "tale.gguf", choose)
    folder = folder_of_floats(tmp_path / "floats", choose)
    formats = survey(EngineConfig(model=str(path), dtype="float32")).resolved.weight_formats
    assert formats is not None and not formats.decoded
    names = [formats.of(f"0.{part}").name for part in ("gate", "up")]
    assert names == ["f32" if gate == "F16" else gate.lower(), up.lower()]
    floats = distributions(folder)
    assert divergence(floats, distributions(path)) < 1e-3
    assert divergence(floats, distributions(path, ops_force="torch")) < 1e-6


def test_rounding_at_load(tmp_path: Path) -> None:
    """A quantised file can be rounded again, as a checkpoint can."""
    path = write_gguf(TALE, tmp_path / "tale.gguf", "Q8_0")
    rounded = seen(generate(path, quantization="int8"))
    assert rounded == seen(generate(folder_of_floats(tmp_path / "floats", "Q8_0"), quantization="int8"))
